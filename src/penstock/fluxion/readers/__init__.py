"""Readers of Fluxion's formats: text to a resource graph, or to marks on an existing one. They do no I/O."""

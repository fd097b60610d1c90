"""Readers of Fluxion's formats: text to a resource graph, or to claims on an existing one. They do no I/O."""

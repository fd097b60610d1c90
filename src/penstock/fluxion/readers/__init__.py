"""Readers: from text to a graph, or to marks on one. Each takes text and does no I/O."""

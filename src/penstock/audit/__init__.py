"""A second, independent reading of world, store and graph."""

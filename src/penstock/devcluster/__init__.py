"""A real control plane with simulated nodes, for development and tests."""

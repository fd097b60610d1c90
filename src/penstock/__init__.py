"""Penstock: the batch scheduler for Kubernetes that knows time."""

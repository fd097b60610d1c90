"""Penstock: a batch scheduler for Kubernetes that plans starts ahead of time."""

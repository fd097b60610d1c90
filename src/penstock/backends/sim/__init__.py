"""Simulated backends for tests and measurements: nodes and members exist in memory only, and nothing runs.

`backend` uses virtual time, `mock` the real clock.
"""

"""Durable state: PostgreSQL in production, memory in tests. One transaction per step, fenced by an epoch."""

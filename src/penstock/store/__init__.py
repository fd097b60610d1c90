"""The memory: what must survive, in one transaction per step, fenced by an epoch."""

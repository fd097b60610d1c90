"""A world that is only imagined: nodes and members in memory, on a clock that its owner turns.

It is for simulating and for tests, and says so: nothing here runs anything.
"""

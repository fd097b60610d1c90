"""The node agent: runs tasks, each under its own supervisor process, and reports their state.

An agent may crash, be killed or be replaced at any time without loss: a task is a directory, and its state
follows from the files in it and from the holder of its lock (`task_dirs`). The supervisor (`supervisor`)
outlives the agent and uses no socket. The agent (`server`) implements the protocol (`wire`) and persists
every change before it acts. `orphans` ends the tasks that a dead agent left behind.
"""

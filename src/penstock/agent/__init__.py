"""The node agent: runs tasks, each under a supervisor of its own, and tells who asks what became of them.

An agent may die at any instant, be killed, or be replaced, and nothing is lost: a task is a directory, its
state is which files are in it and who holds its lock (`home`). The supervisor (`supervisor`) outlives the
agent and knows nothing of sockets; the agent (`server`) speaks the protocol (`wire`) and writes down before
it acts. `salvage` ends what a dead agent has left behind.
"""

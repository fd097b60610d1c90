"""The protocol between the scheduler and its backends.

A backend reports facts (`facts`). Users give commands (`commands`). The scheduler answers with intents
(`intents`), which a backend applies. `backend` defines what a backend implements. Keys of nodes, workloads,
members and external usage are opaque text: the scheduler does not know whether a member is a pod, a process
or a simulated task.
"""

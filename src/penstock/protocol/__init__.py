"""The port: the one seam between the scheduler and a world in which jobs run.

A world reports facts (`facts`), people have wishes (`commands`), the scheduler has intents (`intents`), and
`port` says what a driver must be able to do. Keys of nodes, works, members and holds are opaque text, so the
core never learns whether a member is a pod, a process or a line in a simulation.
"""

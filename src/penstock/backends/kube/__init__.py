"""The world of Kubernetes: pods as members, nodes as a graph, bindings as placements.

Pure translation is in `asks`, `constraints`, `nodes` and `groups`; `cache` keeps what the API server has
told and makes facts of it; `backend` speaks to the API server.
"""

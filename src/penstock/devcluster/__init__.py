"""A real Kubernetes control plane with simulated nodes, for development and tests.

`cluster` is the API: it starts and stops everything. `commands` has the command line of each component,
`binaries` the pinned programs, `certificates` the credentials, `stages` the pod lifecycle that kwok
simulates. `reaper` is the process that cleans up after the owner, `registry` lists a user's clusters.
"""

"""Pure translation of Kubernetes objects into groups, requests, constraints and topology levels.

Used by the Kubernetes backend, and by everything else that needs to know how an object would be scheduled.
It does no I/O, reads no clock and keeps no state: trackers across objects are in `penstock.backends.kube`.
"""

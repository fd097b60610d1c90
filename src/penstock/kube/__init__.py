"""The client of the Kubernetes API server: access, requests, watches, leader election.

No other package sends requests to the API server. This one decodes API objects (`types`) and does not depend
on scheduling.
"""

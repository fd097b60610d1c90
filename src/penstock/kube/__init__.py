"""The only speaker to a Kubernetes API server: access, requests, watches, election.

It knows objects as the API has them (`types`), and nothing of scheduling.
"""

"""The Kubernetes backend: pods are members, nodes form the resource graph, a placement is a binding.

`penstock.podspec` translates single objects; `cache` tracks them together and derives facts; `backend`
watches the API server, and `executor` carries out intents there.
"""

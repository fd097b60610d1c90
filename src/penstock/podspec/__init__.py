"""Pure translation of Kubernetes objects into groups, requests and constraints."""

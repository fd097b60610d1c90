"""Backends that run jobs: pods (`kube`), processes (`local`), and a simulation (`sim`)."""

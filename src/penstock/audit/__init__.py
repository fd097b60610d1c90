"""The auditor: an independent check of the cluster, the store and the resource graph against each other.

    snapshots     the three snapshots, as values
    pod_usage     the resource usage of a pod, computed independently of `podspec`
    api, store    take the snapshots of the cluster and the store; the caller provides that of the graph
    differences   the kinds of difference, and the one repair of each
    compare       finds the differences between the snapshots; pure
    auditor       every minute: take snapshots, compare, confirm, repair
    metrics       Prometheus metrics

The auditor shares no code with the backend, so a mistake in the backend cannot hide itself here.
"""

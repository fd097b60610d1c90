"""A second, independent reading of world, store and graph.

    readings      the three readings, as values
    amounts       what a pod counts for, computed for a second time and as plainly as can be
    api, store    how the cluster and the store are read; the graph's reading is handed in
    differences   the kinds of difference, and the one repair of each
    compare       where the readings contradict each other; pure
    auditor       every minute: read, compare, read again, repair
    metrics       what is told of it

Nothing here is shared with the driver, so that a mistake there cannot hide itself here.
"""

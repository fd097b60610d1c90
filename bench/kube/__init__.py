"""Penstock beside kube-scheduler and the bare API server, on one control plane: `python -m bench.kube`.

`plane` is the control plane and what is in it; `contenders` are those who bind; `binds` sees when; `usage`
tells what it costs; `cases` puts them together; `report` shows it. `binder` and `sampled` are processes of
their own: bindings without a scheduler, and a Penstock that looks where its time goes.

The control plane is real: etcd, API server and controller manager, as processes. kwok is off: nodes are made
Ready by us and the controller manager waits a day for their leases, so nothing plays kubelets and pods that
are bound stay Pending. Pods are there before anybody looks at them, then the contender starts.
"""

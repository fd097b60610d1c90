"""`python -m bench.kube`: compares Penstock with kube-scheduler and bare bindings on one control plane.

`plane` is the control plane with its nodes and pods; `contenders` starts and stops the schedulers; `binds`
records binding times from a watch; `usage` reads CPU time and memory; `cases` measures; `report` prints the
results. `binder` and `sampled` are separate processes: bindings without a scheduler, and a Penstock with a
sampling profiler.

The control plane is real: etcd, API server and controller manager run as processes. kwok does not run: the
benchmark itself sets nodes Ready, and the controller manager tolerates missing leases for a day. There are no
kubelets, so bound pods stay Pending. The pods exist before the contender starts.
"""

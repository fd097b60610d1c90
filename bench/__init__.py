"""Benchmarks. `python -m bench` measures the matcher through `resource-query`, and whole instances.

`inputs` generates clusters, jobspecs and commands; `run` runs and measures one case in its process;
`calibrate` measures the speed of the machine; `peer` has Fluxion's figures; `report` compares both.
`__main__` starts a new process for every case, size and policy. `instance` measures whole instances.
`kube` is a separate benchmark on a Kubernetes control plane.
"""

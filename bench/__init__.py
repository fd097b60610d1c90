"""How fast the matcher is, measured through the face that users type at: `python -m bench`.

`inputs` makes the clusters, jobspecs and commands; `run` plays one case in this process and measures
it; `calibrate` says how fast the machine is; `peer` holds the figures to compare with; `report` puts
both beside each other. `__main__` starts a fresh process for every case, size and policy.
`kube` is a measurement of its own, on a Kubernetes control plane.
"""

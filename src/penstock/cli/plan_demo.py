"""`penstock demo`: parses its options and runs the live demo, or plans a workload with `--plan`.

`--plan` starts nothing: the engine plans a fixed workload on a simulated cluster (`demo_plan`), and the plan
is drawn as text (`plan_chart`) or printed as JSON. Equal options give byte-identical output.
"""

from __future__ import annotations

import getopt
import json
import sys
from dataclasses import asdict
from typing import Final

from penstock.cli import exits
from penstock.cli.demo_plan import CORES, GPUS, NODES_DEFAULT, NODES_MAX, DemoJob, DemoPlan, plan
from penstock.cli.plan_chart import draw, show
from penstock.engine import Reason
from penstock.errors import BadRequest

__all__ = ["main", "to_json"]

USAGE: Final = f"""usage: penstock demo
       penstock demo --plan [OPTIONS...]

Start a temporary instance with four nodes, run a mixed workload on it for some seconds, compare the
promised starts with the actual ones, and remove the instance.

With --plan, start nothing: plan a workload on a simulated cluster and draw the plan.

OPTIONS of --plan:
    --nodes=N        1 to {NODES_MAX} nodes with {CORES} cores and {GPUS} gpus each (default: 8)
    --policy=POLICY  match policy: first (default), low, high, lonode, hinode, pack, spread, ...
    -o FORMAT        text (default) or json
    -h, --help       show this help"""


def main(argv: list[str]) -> int:
    try:
        given, rest = getopt.gnu_getopt(argv, "o:h", ["plan", "nodes=", "policy=", "help"])
    except getopt.GetoptError as error:
        return _usage_error(str(error))
    options = {name.lstrip("-"): value for name, value in given}
    if "h" in options or "help" in options:
        print(USAGE)
        return 0
    if rest:
        return _usage_error(f"unexpected argument {rest[0]!r}")
    if "plan" not in options:
        if options:
            return _usage_error(f"{given[0][0]} needs --plan")
        from penstock.cli.demo import run_demo  # It imports much that --plan does not need.

        return run_demo()
    output = options.get("o", "text")
    if output not in ("text", "json"):
        return _usage_error(f"-o: {output!r} is not text or json")
    nodes = options.get("nodes", str(NODES_DEFAULT))
    if not (nodes.isascii() and nodes.isdigit() and len(nodes) <= 4 and 1 <= int(nodes) <= NODES_MAX):
        return _usage_error(f"--nodes: {nodes!r} is not a number from 1 to {NODES_MAX}")
    try:
        planned = plan(int(nodes), options.get("policy", "first"))
    except BadRequest as error:
        return _usage_error(str(error))
    if output == "json":
        print(json.dumps(to_json(planned), indent=2))
    else:
        show(draw(planned))
    return 0


def _usage_error(message: str) -> int:
    print(f"penstock demo: {message}\nTry `penstock demo --help`.", file=sys.stderr)
    return exits.USAGE


def to_json(planned: DemoPlan) -> dict[str, object]:
    """The plan as a JSON document."""
    names = {node.rank: node.name for node in planned.nodes}
    return {
        "cluster": {"nodes": list(names.values()), "cores_per_node": CORES, "gpus_per_node": GPUS},
        "policy": planned.policy,
        "jobs": [_job_to_json(job, names) for job in planned.jobs],
    }


def _job_to_json(job: DemoJob, names: dict[int, str]) -> dict[str, object]:
    start_s, end_s = job.span() if job.allocation is not None else (None, None)
    gpus = job.gpus()
    return {
        "job": job.number,
        "letter": job.letter,
        "name": job.request.name,
        "request": str(job.request),
        "duration_s": job.request.duration_s,
        "outcome": job.allocation.kind.value.lower() if job.allocation is not None else "never",
        "start_s": start_s,
        "end_s": end_s,
        "nodes": [
            {"node": names[rank], "cores": ids, "gpus": gpus.get(rank, [])}
            for rank, ids in job.cores().items()
        ],
        "reason": _reason_document(job.reason) if job.reason is not None else None,
    }


def _reason_document(reason: Reason) -> dict[str, object]:
    return {
        "clause": reason.clause,
        "steps": [asdict(stage) for stage in reason.stages],
        "blockers": [{"who": str(blocker), "until_s": blocker.until_s} for blocker in reason.blockers],
    }

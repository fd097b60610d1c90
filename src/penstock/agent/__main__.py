"""`python -m penstock.agent`: runs one agent in the foreground. The process that starts it restarts it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path

from penstock.agent.server import Agent, AgentSettings, raise_open_files_limit
from penstock.errors import PenstockError


def main() -> int:
    parser = argparse.ArgumentParser(prog="penstock.agent", description="Runs tasks for an instance.")
    parser.add_argument("--node", required=True, help="name of the node that the agent represents")
    parser.add_argument("--dir", required=True, type=Path, help="directory of its tasks")
    parser.add_argument("--socket", required=True, type=Path, help="path of its Unix socket")
    parser.add_argument(
        "--tasks-max",
        type=int,
        default=10_000,
        help="maximum number of tasks, ended ones that are not released included",
    )
    options = parser.parse_args()
    settings = AgentSettings(
        node=options.node,
        directory=options.dir.absolute(),
        socket=options.socket.absolute(),
        tasks_max=options.tasks_max,
        open_files=raise_open_files_limit(),
    )
    gc.collect()
    gc.freeze()  # keeps memory pages shared with forked supervisors
    try:
        asyncio.run(Agent(settings).run())
    except PenstockError as error:
        sys.stderr.write(f"penstock.agent: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

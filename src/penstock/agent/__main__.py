"""`python -m penstock.agent`: one agent in the foreground; whoever starts it sees to the rest."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path

from penstock.agent.server import Agent, AgentSettings, raised_open_files
from penstock.errors import PenstockError


def main() -> int:
    parser = argparse.ArgumentParser(prog="penstock.agent", description="Runs tasks for an instance.")
    parser.add_argument("--node", required=True, help="the name of the node that it stands for")
    parser.add_argument("--dir", required=True, type=Path, help="where it keeps its tasks")
    parser.add_argument("--socket", required=True, type=Path, help="where it listens")
    parser.add_argument("--tasks-max", type=int, default=10_000, help="how many tasks it knows at most")
    options = parser.parse_args()
    settings = AgentSettings(
        node=options.node,
        home=options.dir.absolute(),
        socket=options.socket.absolute(),
        tasks_max=options.tasks_max,
        open_files=raised_open_files(),
    )
    gc.collect()
    gc.freeze()  # so that supervisors share the memory that they were forked with
    try:
        asyncio.run(Agent(settings).run())
    except PenstockError as error:
        sys.stderr.write(f"penstock.agent: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

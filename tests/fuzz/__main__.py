"""`make fuzz`: handles many fuzzed inputs, each part of them from another seed.

python -m tests.fuzz --inputs 1000000 --seed 1                 with the memory store
python -m tests.fuzz --inputs 100000 --seed 1 --postgres       with PostgreSQL, in larger batches
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from contextlib import ExitStack
from typing import Final

from penstock.store.memory import MemoryStore
from penstock.store.postgres import PostgresStore
from tests.fuzz.harness import Fuzzer
from tests.instance.restarts import with_loop
from tests.store.servers import fresh_database, started_server

_PART: Final = 20_000  # inputs from one seed
_POLICIES: Final = ("easy", "fcfs", "conservative", "hybrid")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    done, began = 0, time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(started_server()) if options.postgres else None
        run = with_loop()
        for seed in itertools.count(options.seed):
            if done >= options.inputs:
                break
            policy = _POLICIES[seed % len(_POLICIES)]
            if server is None:
                fuzzer = Fuzzer(seed, MemoryStore(), policy=policy)
            else:
                store = PostgresStore(fresh_database(server))
                run(store.open())
                stack.callback(run, store.close())
                fuzzer = Fuzzer(seed, store, run, batch_max=300, policy=policy)
            fuzzer.feed(min(_PART, options.inputs - done))
            done += fuzzer.inputs
            elapsed_s = time.monotonic() - began
            sys.stdout.write(f"seed {seed} ({policy}): {done} inputs, {elapsed_s:.0f} s\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

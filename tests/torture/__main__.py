"""`python -m tests.torture N [SEED]`: runs rounds until N kills; stops at the first violated invariant."""

from __future__ import annotations

import random
import sys
import time

from tests.torture.cluster import Cluster
from tests.torture.rounds import run_round


def main() -> int:
    kills_wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else random.SystemRandom().randrange(1 << 32)
    print_line(f"torture: {kills_wanted} kills, seed {seed}")
    rng = random.Random(seed)
    cluster = Cluster()
    began = time.monotonic()
    rounds = 0
    try:
        cluster.start()
        while cluster.kills < kills_wanted:
            run_round(cluster, rng, rng.randint(2, 8))
            rounds += 1
            elapsed_s = time.monotonic() - began
            print_line(f"{cluster.kills:6} kills in {elapsed_s:6.0f} s, round {rounds}: all invariants hold")
        cluster.stop()
    except BaseException as error:
        cluster.destroy()
        print_line(f"round {rounds + 1}, seed {seed}")
        print_line(f"{type(error).__name__}: {error}")
        print_line(f"the cluster's files are kept in {cluster.base}")
        raise
    cluster.destroy()
    cluster.remove()
    print_line(
        f"{cluster.kills} kills in {rounds} rounds, {time.monotonic() - began:.0f} s: all invariants hold"
    )
    return 0


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.torture N [SEED]`: kills until N have died, and stops at the first thing that is wrong."""

from __future__ import annotations

import random
import sys
import time

from tests.torture.cluster import Cluster
from tests.torture.rounds import play


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else random.SystemRandom().randrange(1 << 32)
    say(f"torture: {wanted} kills, seed {seed}")
    chance = random.Random(seed)
    cluster = Cluster()
    began = time.monotonic()
    rounds = 0
    try:
        cluster.start()
        while cluster.kills < wanted:
            play(cluster, chance, chance.randint(2, 8))
            rounds += 1
            passed_s = time.monotonic() - began
            say(f"{cluster.kills:6} kills in {passed_s:6.0f} s, round {rounds}: nothing is wrong")
        cluster.stop()
    except BaseException as error:
        cluster.destroy()
        say(f"round {rounds + 1}, seed {seed}")
        say(f"{type(error).__name__}: {error}")
        say(f"everything is kept in {cluster.base}")
        raise
    cluster.destroy()
    cluster.remove()
    say(f"{cluster.kills} kills in {rounds} rounds, {time.monotonic() - began:.0f} s: nothing is wrong")
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

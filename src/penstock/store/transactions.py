"""The transactions of a store by name, each with a failpoint before and one after its commit.

`before` is the last moment at which a death loses the transaction, `after` the first at which it is kept
although nobody has been told. A method of `Store` that writes is a transaction and must be listed here;
`migrate` is the one that belongs to `open`.
"""

from __future__ import annotations

from typing import Final

from penstock.failpoints import reach, register

__all__ = ["FORGOTTEN_AT_ONCE_MAX", "KEYS_KEPT_S", "TRANSACTIONS", "reach_after", "reach_before"]

TRANSACTIONS: Final = ("claim_cluster", "take_over", "record", "prune", "migrate")

KEYS_KEPT_S: Final = 7 * 86400.0  # how long the key of a submission is known
FORGOTTEN_AT_ONCE_MAX: Final = 10_000

_BEFORE: Final = {
    name: register(f"store.{name}.before", f"the transaction {name} is complete, but not committed")
    for name in TRANSACTIONS
}
_AFTER: Final = {
    name: register(f"store.{name}.after", f"the transaction {name} is committed, but nobody knows")
    for name in TRANSACTIONS
}


def reach_before(transaction: str) -> None:
    reach(_BEFORE[transaction])


def reach_after(transaction: str) -> None:
    reach(_AFTER[transaction])

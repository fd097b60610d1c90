"""Names of the store's transactions, each with a failpoint before and one after its commit.

A crash at `before` loses the transaction. A crash at `after` keeps it, although the caller has not received
the result. Every method of `Store` that writes is a transaction and must be listed here; `migrate` is the
transaction of `open`.
"""

from __future__ import annotations

from typing import Final

from penstock.failpoints import reach, register

__all__ = ["PRUNE_BATCH_MAX", "SUBMISSION_KEY_TTL_S", "TRANSACTIONS", "reach_after", "reach_before"]

TRANSACTIONS: Final = ("claim_cluster", "take_over", "record", "prune", "migrate")

SUBMISSION_KEY_TTL_S: Final = 7 * 86400.0
PRUNE_BATCH_MAX: Final = 10_000  # jobs

_BEFORE: Final = {
    name: register(f"store.{name}.before", f"the transaction {name} is complete and not committed")
    for name in TRANSACTIONS
}
_AFTER: Final = {
    name: register(f"store.{name}.after", f"the transaction {name} is committed and the caller has no result")
    for name in TRANSACTIONS
}


def reach_before(transaction: str) -> None:
    reach(_BEFORE[transaction])


def reach_after(transaction: str) -> None:
    reach(_AFTER[transaction])

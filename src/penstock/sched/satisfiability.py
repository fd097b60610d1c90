"""Requests that the present nodes can never satisfy. Equal requests are checked once per set of nodes."""

from __future__ import annotations

from typing import Final

from penstock.engine import Engine, Never
from penstock.engine.engine import MatchOp
from penstock.engine.request import Request
from penstock.errors import BadRequest

__all__ = ["Satisfiability"]

_MEMO_MAX: Final = 10_000


class Satisfiability:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reasons: dict[Request, str] = {}  # "": it is satisfiable
        self._needs_recheck = False
        self._unsatisfiable: dict[int, None] = {}  # jobs

    def copy(self, engine: Engine) -> Satisfiability:
        made = Satisfiability(engine)
        made._reasons, made._unsatisfiable = dict(self._reasons), dict(self._unsatisfiable)
        made._needs_recheck = self._needs_recheck
        return made

    def nodes_changed(self) -> None:
        """Requests that were unsatisfiable may be satisfiable on the changed nodes, and vice versa."""
        self._needs_recheck = True
        self._reasons.clear()

    def reason_of(self, request: Request) -> str:
        """Why the cluster can never satisfy a request; "" if it can."""
        found = self._reasons.get(request)
        if found is None:
            try:
                answer = self._engine.match(0, request, 0, MatchOp.SATISFIABILITY)
                found = str(answer.reason) if isinstance(answer, Never) else ""
            except BadRequest as error:  # A workload was not submitted by a command that could fail.
                found = f"invalid request: {error}"
            if len(self._reasons) >= _MEMO_MAX:
                self._reasons.clear()
            self._reasons[request] = found
        return found

    def mark(self, job: int, is_unsatisfiable: bool) -> None:
        if is_unsatisfiable:
            self._unsatisfiable[job] = None
        else:
            self._unsatisfiable.pop(job, None)

    def is_marked(self, job: int) -> bool:
        return job in self._unsatisfiable

    def take_jobs_to_recheck(self) -> list[int]:
        """The unsatisfiable jobs, if nodes have changed since the last call."""
        if not self._needs_recheck:
            return []
        self._needs_recheck = False
        return list(self._unsatisfiable)

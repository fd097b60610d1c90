"""Which part of a constraint keeps a request off which nodes, in words.

The parts of a constraint are its operands: pairs of a node selector, node affinity, tolerations, names. A
taint that says that a node is cordoned, not ready or under pressure is temporary: the node counts for what
could ever run (`matches` with `ideal`), and the words say so. The nearest node is the one that the fewest
parts keep out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.engine.graph import Vertex
from penstock.model.constraint import (
    CORDON_KEY,
    And,
    Constraint,
    HostIn,
    Hostlist,
    Not,
    Or,
    Properties,
    Ranks,
    Tolerates,
    Value,
    ValueOperator,
    matches,
    untolerated_taints,
)
from penstock.model.resource_types import format_count

__all__ = ["describe_mismatches"]

_PARTS_SHOWN: Final = 3
_TEXT_MAX: Final = 120
_VALUES_SHOWN: Final = 4


def describe_mismatches(constraint: Constraint, nodes: Sequence[Vertex], *, ideal: bool = False) -> str:
    """How many nodes each part keeps out, and the nearest node if several parts do; "" if none does."""
    parts = _parts(constraint)
    counts: Counter[str] = Counter()
    nearest: tuple[int, Vertex, list[str]] | None = None
    for node in nodes:
        failing = [text for part in parts for text in _failures(part, node, ideal)]
        if not failing:
            continue
        counts.update(list(dict.fromkeys(failing)))
        if nearest is None or len(failing) < nearest[0]:
            nearest = (len(failing), node, failing)
    if nearest is None:
        return ""
    shown = [f"{format_count(count, 'node')}: {text}" for text, count in counts.most_common(_PARTS_SHOWN)]
    more = len(counts) - len(shown)
    if more:
        shown.append(f"and {more} more")
    text = "; ".join(shown)
    if len(counts) > 1:
        text += f"; nearest: {nearest[1].name} ({', '.join(nearest[2])})"
    return text


def _parts(constraint: Constraint) -> list[Constraint]:
    """The operands of nested conjunctions."""
    parts: list[Constraint] = []
    remaining = [constraint]
    while remaining:
        one = remaining.pop(0)
        if isinstance(one, And):
            remaining[:0] = one.operands
        else:
            parts.append(one)
    return parts


def _failures(part: Constraint, node: Vertex, ideal: bool) -> list[str]:
    if isinstance(part, Tolerates):
        return [
            "cordoned" if taint.key == CORDON_KEY else f"taint {taint} not tolerated"
            for taint in untolerated_taints(part, node, ideal=ideal)
        ]
    return [] if matches(part, node, ideal=ideal) else [_failure(part)]


def _failure(part: Constraint) -> str:
    match part:
        case Value():
            return f"node selector {_cut(_text(part))} does not match"
        case Or():
            return f"node affinity {_cut(_text(part))} does not match"
        case Not(operands=(HostIn(),)):
            return "has refused it"
        case _:
            return f"constraint {_cut(_text(part))} does not match"


def _text(constraint: Constraint) -> str:
    match constraint:
        case Value(key=key, operator=ValueOperator.IN, values=(value,)):
            return f"{key}={value}"
        case Value(key=key, operator=operator, values=values):
            return f"{key} {operator.value} {_list(values)}".rstrip()
        case Or(operands=operands):
            return " or ".join(_text(one) for one in operands)
        case And(operands=operands):
            return " and ".join(_text(one) for one in operands)
        case Not(operands=operands):
            return (
                f"not ({' and '.join(_text(one) for one in operands)})" if operands else "(matches no node)"
            )
        case Properties(names=names):
            return ",".join(names)
        case Hostlist(hosts=names) | HostIn(names=names):
            return f"name {_list(sorted(names))}"
        case Ranks(ranks=ranks):
            return f"rank {_list(str(rank) for rank in sorted(ranks))}"
        case Tolerates():
            return "tolerations"


def _list(values: Iterable[str]) -> str:
    texts = list(values)
    more = [f"... {len(texts) - _VALUES_SHOWN} more"] if len(texts) > _VALUES_SHOWN else []
    return ",".join([*texts[:_VALUES_SHOWN], *more])


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."

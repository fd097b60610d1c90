"""Compares what is reachable from two objects: equal contents, and nothing shared that can change."""

from __future__ import annotations

import enum
import re
import types
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

__all__ = ["digest", "shared_mutables"]

_ATOMS = (str, bytes, int, float, complex, bool, type(None), enum.Enum, type, re.Pattern, range, frozenset)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
# Values of these modules are never modified, although some contain dicts.
_VALUES = re.compile(
    r"penstock\.(protocol\..*|model\.(?!jobid).*|engine\.(request|policies|plain_slots)|sched\.(records|jobspec|settings|dependencies|forecast))"
)
_UNCHANGED = re.compile(r"\.recorded_spec$|\.resources_by_node\[.*\]$")  # mappings that are never modified


def _is_atom(one: object) -> bool:
    return isinstance(one, (*_ATOMS, *_CODE))


def _is_frozen(one: object) -> bool:
    params = getattr(type(one), "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


def _attributes(one: object) -> Iterator[tuple[str, Any]]:
    names: dict[str, None] = {}
    for cls in type(one).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
    names.update(dict.fromkeys(getattr(one, "__dict__", {})))
    for name in names:
        if name not in ("__dict__", "__weakref__") and hasattr(one, name):
            yield name, getattr(one, name)


def digest(root: object, skip: Collection[str] = ()) -> list[tuple[object, ...]]:
    """All that is reachable, as rows that can be compared. References to what can change are row numbers.

    Attributes with a name in `skip` are left out.
    """
    numbers = {id(root): 0}
    objects = [root]

    def ref(one: object) -> object:
        if isinstance(one, _CODE):
            return ("code", getattr(one, "__qualname__", repr(one)))
        if isinstance(one, frozenset):
            return ("frozenset", sorted(map(repr, one)))
        if _is_atom(one):
            return one
        if isinstance(one, tuple):
            return (type(one).__qualname__, [ref(item) for item in one])
        if _is_frozen(one):
            return (type(one).__qualname__, [(name, ref(value)) for name, value in _attributes(one)])
        if id(one) not in numbers:
            numbers[id(one)] = len(objects)
            objects.append(one)
        return ("#", numbers[id(one)])

    rows: list[tuple[object, ...]] = []
    for one in objects:
        if isinstance(one, dict):
            contents: list[object] = [(ref(key), ref(value)) for key, value in one.items()]
        elif isinstance(one, set):
            contents = [*sorted(map(repr, one))]
        elif isinstance(one, list | deque):
            contents = [ref(item) for item in one]
        else:
            contents = [(name, ref(value)) for name, value in _attributes(one) if name not in skip]
        rows.append((type(one).__qualname__, contents))
    return rows


def _mutables(root: object, skip: Collection[str]) -> dict[int, tuple[str, object]]:
    """Everything reachable that can change, with one path to it."""
    found: dict[int, tuple[str, object]] = {}
    seen = {id(root)}
    queue: deque[tuple[str, object]] = deque([("", root)])
    while queue:
        path, one = queue.popleft()
        children: list[tuple[str, object]]
        if isinstance(one, dict):
            children = [(f"{path}[{key!r:.40}]", value) for key, value in one.items()]
            children += [(f"{path} key", key) for key in one]
        elif isinstance(one, list | tuple | deque | set):
            children = [(f"{path}[]", item) for item in one]
        else:
            children = [(f"{path}.{name}", value) for name, value in _attributes(one) if name not in skip]
        has_state = bool(children) or isinstance(one, dict | list | set | deque)
        if has_state and not isinstance(one, tuple) and not _is_frozen(one):
            found[id(one)] = (path, one)
        for where, child in children:
            if _is_atom(child) or id(child) in seen or _VALUES.match(type(child).__module__):
                continue
            if _UNCHANGED.search(where):
                continue
            seen.add(id(child))
            queue.append((where, child))
    return found


def shared_mutables(one: object, other: object, skip: Collection[str] = ()) -> list[str]:
    """Paths to objects that can change and are reachable from both, but not by attributes in `skip`."""
    theirs = _mutables(other, skip)
    return [path for number, (path, _) in _mutables(one, skip).items() if number in theirs]

"""What a pod on a node counts for, computed for a second time.

This is the rule of Kubernetes' own scheduler, written down as plainly as can be: exact fractions, one kind
after the other, rounded up at the very end. It is slow, and that is fine: it is the measure that something
quick is checked against.

    C   = all containers + all sidecars               a sidecar is an init container that is always restarted
    I_i = init container i + the sidecars before it    for each i, also for sidecars
    A   = the largest of C and every I_i
    P   = what the pod as a whole asks for, if it says so (cpu, memory, huge pages only), else A
    ask = P + overhead

A container that runs may have been resized: it counts with the largest of what its spec wants, what it has
and what was set aside for it; a resize that the node has called infeasible is no wish any more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.types import Container, ContainerStatus, Pod

__all__ = ["amounts_of", "exact", "pod_amounts"]

_Exact = dict[str, Fraction]

_QUANTITY: Final = re.compile(r"([+-]?[0-9.]{1,40})(?:[eE]([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_PLAIN: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_CPU: Final = "cpu"
_PODS: Final = "pods"


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """A quantity of Kubernetes as a number."""
    found = _QUANTITY.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        number, exponent, suffix = Fraction(found[1]), found[2], found[3] or ""
        if exponent is not None:
            return number * _power_of_ten(int(exponent))
        if suffix in _BINARY:
            return number * (1 << 10 * _BINARY[suffix])
        return number * _power_of_ten(_DECIMAL[suffix])
    except (ValueError, KeyError):
        raise BadRequest("not a quantity", found=repr(text), expected="such as 500m, 1.5Gi or 2e3") from None


def _power_of_ten(exponent: int) -> Fraction:
    return Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent)


def amounts_of(quantities: Mapping[str, str] | None) -> dict[str, int]:
    """What a node has to give, in whole units of the kinds that are counted."""
    told = {kind: exact(text) for kind, text in (quantities or {}).items()}
    return _whole({kind: value for kind, value in told.items() if kind == _PODS or _is_counted(kind)})


def pod_amounts(pod: Pod) -> dict[str, int]:
    """What a pod uses on the node it is on."""
    spec = pod.spec
    infeasible = _is_infeasible(pod)
    status_of = {status.name: status for status in pod.status.container_statuses or ()}
    init_status_of = {status.name: status for status in pod.status.init_container_statuses or ()}

    running = _sum(_asked(one, status_of.get(one.name), infeasible) for one in spec.containers)
    sidecars: _Exact = {}
    starting: list[_Exact] = []
    for one in spec.init_containers or ():
        if one.restart_policy == "Always":
            own = _asked(one, init_status_of.get(one.name), infeasible)
            starting.append(_sum([own, sidecars]))
            sidecars = _sum([own, sidecars])
        else:
            starting.append(_sum([_parsed(one.resources.requests), sidecars]))
    total = _largest([_sum([running, sidecars]), *starting])

    total.update(_asked_as_a_whole(pod, infeasible))
    total = _sum([total, _parsed(spec.overhead)])
    counted = {kind: value for kind, value in total.items() if _is_counted(kind)}
    return {**_whole(counted), _PODS: 1}


def _asked(container: Container, status: ContainerStatus | None, infeasible: bool) -> _Exact:
    wanted = _parsed(container.resources.requests)
    if status is None or status.resources is None:
        return wanted
    has = [_parsed(status.resources.requests), _parsed(status.allocated_resources)]
    return _largest(has if infeasible else [wanted, *has])


def _asked_as_a_whole(pod: Pod, infeasible: bool) -> _Exact:
    wanted = _parsed(pod.spec.resources.requests if pod.spec.resources is not None else None)
    wanted = {kind: value for kind, value in wanted.items() if _is_shared(kind)}
    if pod.status.resources is None:
        return wanted
    has = _largest([_parsed(pod.status.resources.requests), _parsed(pod.status.allocated_resources)])
    has = {kind: value for kind, value in has.items() if kind in wanted}
    return has if infeasible else _largest([wanted, has])


def _is_infeasible(pod: Pod) -> bool:
    return any(
        one.type == "PodResizePending" and one.reason == "Infeasible" for one in pod.status.conditions or ()
    )


def _is_counted(kind: str) -> bool:
    if kind in _PLAIN or kind.startswith(("hugepages-", "attachable-volumes-")):
        return True
    return "/" in kind and not kind.startswith("requests.")  # Those are words of quotas.


def _is_shared(kind: str) -> bool:
    """Whether a pod can ask for it as a whole."""
    return kind in ("cpu", "memory") or kind.startswith("hugepages-")


def _parsed(quantities: Mapping[str, str] | None) -> _Exact:
    return {kind: exact(text) for kind, text in (quantities or {}).items()}


def _sum(parts: Iterable[_Exact]) -> _Exact:
    total: _Exact = {}
    for part in parts:
        for kind, value in part.items():
            total[kind] = total.get(kind, Fraction(0)) + value
    return total


def _largest(parts: Iterable[_Exact]) -> _Exact:
    largest: _Exact = {}
    for part in parts:
        for kind, value in part.items():
            largest[kind] = max(largest.get(kind, value), value)
    return largest


def _whole(values: _Exact) -> dict[str, int]:
    """Millicores for cpu, units for all else, rounded up; what is 0 is left out."""
    whole = {kind: math.ceil(value * 1000 if kind == _CPU else value) for kind, value in values.items()}
    return {kind: units for kind, units in whole.items() if units}

"""The resource usage of a pod on its node, computed independently of `podspec`.

This is the rule of kube-scheduler in its simplest form: exact fractions, one resource after the other,
rounded up at the end. It is slow by design: it is the reference that the fast implementation is checked
against.

    C     = all containers + all sidecars             a sidecar is an init container with restartPolicy Always
    I_i   = init container i + the sidecars before it  for each i, also for sidecars
    A     = the maximum of C and every I_i
    P     = the pod-level request if there is one (cpu, memory, huge pages only), else A
    usage = P + overhead

A running container may have been resized: it counts with the maximum of its request, its actual resources and
its allocated resources. A resize that the node declared infeasible does not count.
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

__all__ = ["allocatable_units", "parse_quantity", "pod_usage"]

_Quantities = dict[str, Fraction]

_QUANTITY: Final = re.compile(r"([+-]?[0-9.]{1,40})(?:[eE]([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_PLAIN: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_CPU: Final = "cpu"
_PODS: Final = "pods"


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """Parses a Kubernetes quantity."""
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


def allocatable_units(quantities: Mapping[str, str] | None) -> dict[str, int]:
    """Returns the allocatable resources of a node in whole units; only resources that the scheduler
    counts."""
    values = _parsed(quantities)
    return _to_units(
        {resource: value for resource, value in values.items() if resource == _PODS or _is_counted(resource)}
    )


def pod_usage(pod: Pod) -> dict[str, int]:
    """Returns what a pod uses on its node."""
    spec = pod.spec
    infeasible = _is_infeasible(pod)
    status_of = {status.name: status for status in pod.status.container_statuses or ()}
    init_status_of = {status.name: status for status in pod.status.init_container_statuses or ()}

    running = _sum(_container_usage(one, status_of.get(one.name), infeasible) for one in spec.containers)
    sidecars: _Quantities = {}
    starting: list[_Quantities] = []
    for one in spec.init_containers or ():
        if one.restart_policy == "Always":
            own = _container_usage(one, init_status_of.get(one.name), infeasible)
            starting.append(_sum([own, sidecars]))
            sidecars = _sum([own, sidecars])
        else:
            starting.append(_sum([_parsed(one.resources.requests), sidecars]))
    total = _largest([_sum([running, sidecars]), *starting])

    total.update(_pod_level_usage(pod, infeasible))
    total = _sum([total, _parsed(spec.overhead)])
    counted = {resource: value for resource, value in total.items() if _is_counted(resource)}
    return {**_to_units(counted), _PODS: 1}


def _container_usage(container: Container, status: ContainerStatus | None, infeasible: bool) -> _Quantities:
    requested = _parsed(container.resources.requests)
    if status is None or status.resources is None:
        return requested
    actual = [_parsed(status.resources.requests), _parsed(status.allocated_resources)]
    return _largest(actual if infeasible else [requested, *actual])


def _pod_level_usage(pod: Pod, infeasible: bool) -> _Quantities:
    requested = _parsed(pod.spec.resources.requests if pod.spec.resources is not None else None)
    requested = {resource: value for resource, value in requested.items() if _is_shared(resource)}
    if pod.status.resources is None:
        return requested
    actual = _largest([_parsed(pod.status.resources.requests), _parsed(pod.status.allocated_resources)])
    actual = {resource: value for resource, value in actual.items() if resource in requested}
    return actual if infeasible else _largest([requested, actual])


def _is_infeasible(pod: Pod) -> bool:
    return any(
        one.type == "PodResizePending" and one.reason == "Infeasible" for one in pod.status.conditions or ()
    )


def _is_counted(resource: str) -> bool:
    if resource in _PLAIN or resource.startswith(("hugepages-", "attachable-volumes-")):
        return True
    # `requests.*` names belong to resource quotas.
    return "/" in resource and not resource.startswith("requests.")


def _is_shared(resource: str) -> bool:
    """Whether a pod-level request can name the resource."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def _parsed(quantities: Mapping[str, str] | None) -> _Quantities:
    return {resource: parse_quantity(text) for resource, text in (quantities or {}).items()}


def _sum(parts: Iterable[_Quantities]) -> _Quantities:
    total: _Quantities = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, Fraction(0)) + value
    return total


def _largest(parts: Iterable[_Quantities]) -> _Quantities:
    largest: _Quantities = {}
    for part in parts:
        for resource, value in part.items():
            largest[resource] = max(largest.get(resource, value), value)
    return largest


def _to_units(values: _Quantities) -> dict[str, int]:
    """Rounds up to millicores for cpu and units for other resources; omits zeros."""
    whole = {
        resource: math.ceil(value * 1000 if resource == _CPU else value) for resource, value in values.items()
    }
    return {resource: units for resource, units in whole.items() if units}

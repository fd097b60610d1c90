"""Resource requests and usage of pods, in integer units per resource.

The requests of a pod that waits are computed from its spec alone, by Kubernetes' rules: containers and
sidecars add up; each init container runs beside the sidecars that were started before it; the larger of
both sums counts; pod-level requests replace that sum, and overhead is added. For a pod on a node the
largest of desired, allocated and actual resources counts, so that a resize in progress is covered. Limits
are not read: the API server copies them to requests that are left out.

Sums are exact, in billionths, and rounded up once at the end, as Kubernetes does: two requests of half a
millicore are one millicore. Each pod uses one unit of its node's `pods`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.types import Container, ContainerStatus, Pod, PodSpec
from penstock.model.quantity import QUANTITY_MAX, BadQuantity, parse_quantity

__all__ = [
    "PODS",
    "ResourceList",
    "is_counted",
    "pod_requests",
    "pod_usage",
    "units_of",
]

ResourceList = tuple[tuple[str, int], ...]

PODS: Final = "pods"

_CPU: Final = "cpu"
_NANO: Final = 10**9
_NAMES: Final = frozenset([_CPU, "memory", "ephemeral-storage"])
_PREFIXES: Final = ("hugepages-", "attachable-volumes-")
_SIDECAR: Final = "Always"  # the restart policy that makes an init container one

_Billionths = dict[str, int]  # by resource


def pod_requests(pod: Pod) -> ResourceList:
    """The requests of a pod, sorted by resource, without zeros. Its status is not read.

    A quantity that cannot be read is a `BadRequest` with its location in the pod.
    """
    spec = pod.spec
    containers = spec.containers
    if len(containers) == 1 and not spec.init_containers and not spec.overhead and spec.resources is None:
        requests = containers[0].resources.requests
        return _single_container_requests(tuple(requests.items()) if requests else ())
    pod_level = spec.resources.requests if spec.resources is not None else None
    return _total(
        spec,
        [_own(container, "spec.containers", index) for index, container in enumerate(containers)],
        [_own(container, "spec.initContainers", i) for i, container in enumerate(spec.init_containers or ())],
        _pod_level(_exact(pod_level, "spec.resources.requests")),
    )


def pod_usage(pod: Pod) -> ResourceList:
    """What a pod on a node uses: its requests, unless its status reports other resources."""
    spec, status = pod.spec, pod.status
    statuses = {
        one.name: one
        for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        if one.resources is not None
    }
    if _matches_spec(pod, statuses):
        return pod_requests(pod)
    infeasible = _is_infeasible(pod)

    def effective(container: Container, part: str, index: int) -> _Billionths:
        own = _own(container, part, index)
        reported = statuses.get(container.name)
        if reported is None or reported.resources is None:
            return own
        where = f"status of container {container.name}"
        actual = _exact(reported.resources.requests, f"{where}: resources.requests")
        allocated = _exact(reported.allocated_resources, f"{where}: allocatedResources")
        return _greatest((actual, allocated) if infeasible else (own, actual, allocated))

    pod_level = _pod_level(
        _exact(spec.resources.requests if spec.resources is not None else None, "spec.resources.requests")
    )
    if status.resources is not None:
        actual = _exact(status.resources.requests, "status.resources.requests")
        allocated = _exact(status.allocated_resources, "status.allocatedResources")
        larger = _greatest((actual, allocated) if infeasible else (pod_level, actual, allocated))
        pod_level = {resource: larger.get(resource, 0) for resource in pod_level}
    return _total(
        spec,
        [effective(container, "spec.containers", i) for i, container in enumerate(spec.containers)],
        [
            (effective if _is_sidecar(container) else _own)(container, "spec.initContainers", i)
            for i, container in enumerate(spec.init_containers or ())
        ],
        pod_level,
    )


@lru_cache(maxsize=4096)
def is_counted(name: str) -> bool:
    """Whether a resource of this name is scheduled by; others are ignored, as by kube-scheduler."""
    if name in _NAMES or name.startswith(_PREFIXES):
        return True
    return "/" in name and (not name.startswith("requests.") or "kubernetes.io/" in name)


def units_of(name: str, text: str, where: str) -> int:
    """A quantity in the units of its resource, rounded up: millicores, bytes, pieces."""
    try:
        units = parse_quantity(text, scale=_scale(name))
    except BadQuantity as error:
        raise _bad(error.summary, name, text, where, error.expected) from error
    if units < 0:
        raise _bad("negative quantity", name, text, where, "at least 0")
    return units


@lru_cache(maxsize=4096)
def _single_container_requests(requests: tuple[tuple[str, str], ...]) -> ResourceList:
    """The requests of a pod with one container and nothing special, as most pods are."""
    units_by_resource = [
        (name, units)
        for name, text in requests
        if is_counted(name) and (units := units_of(name, text, "spec.containers[0].resources.requests"))
    ]
    units_by_resource.append((PODS, 1))
    return tuple(sorted(units_by_resource))


def _total(
    spec: PodSpec, containers: list[_Billionths], inits: list[_Billionths], pod_level: _Billionths
) -> ResourceList:
    total: _Billionths = {}
    for requests in containers:
        _add(total, requests)
    sidecars: _Billionths = {}
    peaks: list[_Billionths] = []
    for container, requests in zip(spec.init_containers or (), inits, strict=True):
        peak = dict(sidecars)
        _add(peak, requests)
        peaks.append(peak)
        if _is_sidecar(container):
            _add(sidecars, requests)
    _add(total, sidecars)
    total = _greatest((total, *peaks))
    total.update(pod_level)
    _add(total, _exact(spec.overhead, "spec.overhead"))
    rounded = [(name, _rounded_up(name, exact)) for name, exact in total.items() if exact > 0]
    rounded.append((PODS, 1))
    rounded.sort()
    return tuple(rounded)


def _own(container: Container, part: str, index: int) -> _Billionths:
    return _exact(container.resources.requests, f"{part}[{index}].resources.requests")


def _exact(requests: Mapping[str, str] | None, where: str) -> _Billionths:
    if not requests:
        return {}
    return {name: _billionths(name, text, where) for name, text in requests.items() if is_counted(name)}


@lru_cache(maxsize=4096)
def _billionths(name: str, text: str, where: str) -> int:
    """Exact, except that a quantity above 9 billion is rounded up to units first."""
    units = units_of(name, text, where)
    try:
        return parse_quantity(text, scale=_NANO)
    except BadQuantity:
        return units * (_NANO // _scale(name))


def _rounded_up(name: str, exact: int) -> int:
    units = -(-exact * _scale(name) // _NANO)
    if units > QUANTITY_MAX:
        raise _bad(
            "the pod requests more than can be counted", name, str(units), "spec", f"at most {QUANTITY_MAX}"
        )
    return units


def _scale(name: str) -> int:
    return 1000 if name == _CPU else 1


def _add(total: _Billionths, more: Mapping[str, int]) -> None:
    for name, exact in more.items():
        total[name] = total.get(name, 0) + exact


def _greatest(alternatives: Iterable[_Billionths]) -> _Billionths:
    greatest: _Billionths = {}
    for alternative in alternatives:
        for name, exact in alternative.items():
            if exact > greatest.get(name, -1):
                greatest[name] = exact
    return greatest


def _pod_level(requests: _Billionths) -> _Billionths:
    """The resources that a pod can request as a whole; others are ignored there."""
    return {
        name: exact
        for name, exact in requests.items()
        if name in (_CPU, "memory") or name.startswith("hugepages-")
    }


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == _SIDECAR


def _is_infeasible(pod: Pod) -> bool:
    """Whether the kubelet has rejected a resize for good: then the desired resources do not count."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible"
    return False


def _matches_spec(pod: Pod, statuses: Mapping[str, ContainerStatus]) -> bool:
    """Whether the status reports the resources of the spec, as it does for most pods."""
    if pod.status.resources is not None:
        return False
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        reported = statuses.get(container.name)
        if reported is not None and reported.resources is not None:
            desired = container.resources.requests or {}
            actual, allocated = reported.resources.requests or {}, reported.allocated_resources or desired
            if actual != desired or allocated != desired:
                return False
    return True


def _bad(summary: str, name: str, text: str, where: str, expected: str) -> BadRequest:
    return BadRequest(summary, where=f"{where}[{name}]", found=repr(text[:80]), expected=expected)

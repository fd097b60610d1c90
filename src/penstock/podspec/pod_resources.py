"""What pods ask for and what they use, in units that a scheduler can add up.

Of a pod that is to be placed its spec alone counts: containers and sidecars add up, each init container
stands beside the sidecars that were started before it, and the larger of both is asked for; what a pod asks
for as a whole replaces that, and overhead comes on top. Of a pod on a node the larger of what it wants, has
been given and has counts, so that a resize under way takes what it may need. Requests that were left out in
favour of limits are filled in by the API server, so limits are not looked at.

Sums are exact, in billionths, and rounded up at the end, as Kubernetes does it: two requests of half a
millicore are one millicore. Each pod takes one of its node's `pods`, and each host port is a kind of its own
of which a node has one.
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
    "host_port_kinds",
    "is_counted",
    "pod_requests",
    "port_kind",
    "units_of",
    "use_of",
]

ResourceList = tuple[tuple[str, int], ...]

PODS: Final = "pods"

_CPU: Final = "cpu"
_NANO: Final = 10**9
_NAMES: Final = frozenset([_CPU, "memory", "ephemeral-storage"])
_PREFIXES: Final = ("hugepages-", "attachable-volumes-")
_SIDECAR: Final = "Always"  # the restart policy that makes an init container one

_Exact = dict[str, int]  # billionths, by name


def pod_requests(pod: Pod) -> ResourceList:
    """What a pod that is to be placed asks for: kinds in order, all above zero. Its status plays no part.

    Bad quantities are a `BadRequest` that says where in the pod they stand.
    """
    spec = pod.spec
    containers = spec.containers
    if (
        len(containers) == 1
        and not containers[0].ports
        and not spec.init_containers
        and not spec.overhead
        and spec.resources is None
    ):
        requests = containers[0].resources.requests
        return _plain_ask(tuple(requests.items()) if requests else ())
    whole = spec.resources.requests if spec.resources is not None else None
    return _total(
        spec,
        [_own(container, "spec.containers", index) for index, container in enumerate(containers)],
        [_own(container, "spec.initContainers", i) for i, container in enumerate(spec.init_containers or ())],
        _pod_level(_exact(whole, "spec.resources.requests")),
    )


def use_of(pod: Pod) -> ResourceList:
    """What a pod on a node uses. As `pod_requests` for one of which the kubelet has told nothing else."""
    spec, status = pod.spec, pod.status
    statuses = {
        told.name: told
        for told in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        if told.resources is not None
    }
    if _is_as_wanted(pod, statuses):
        return pod_requests(pod)
    infeasible = _is_infeasible(pod)

    def effective(container: Container, part: str, index: int) -> _Exact:
        own = _own(container, part, index)
        told = statuses.get(container.name)
        if told is None or told.resources is None:
            return own
        where = f"status of container {container.name}"
        has = _exact(told.resources.requests, f"{where}: resources.requests")
        given = _exact(told.allocated_resources, f"{where}: allocatedResources")
        return _greatest((has, given) if infeasible else (own, has, given))

    whole = _pod_level(
        _exact(spec.resources.requests if spec.resources is not None else None, "spec.resources.requests")
    )
    if status.resources is not None:
        has = _exact(status.resources.requests, "status.resources.requests")
        given = _exact(status.allocated_resources, "status.allocatedResources")
        larger = _greatest((has, given) if infeasible else (whole, has, given))
        whole = {name: larger.get(name, 0) for name in whole}
    return _total(
        spec,
        [effective(container, "spec.containers", i) for i, container in enumerate(spec.containers)],
        [
            (effective if _is_sidecar(container) else _own)(container, "spec.initContainers", i)
            for i, container in enumerate(spec.init_containers or ())
        ],
        whole,
    )


def port_kind(protocol: str, port: int) -> str:
    """The kind under which a node has a host port once.

    The address is left out: Kubernetes lets two pods share a port of a node if both name an address and the
    addresses differ. Here they conflict, so a node can be refused that would do, but never the other way.
    """
    return f"hostport/{protocol or 'TCP'}/{port}"


def host_port_kinds(pod: Pod) -> tuple[str, ...]:
    """Of containers and sidecars, each once, in order."""
    spec = pod.spec
    if spec.init_containers is None and not any(container.ports for container in spec.containers):
        return ()
    return _port_kinds(spec)


@lru_cache(maxsize=4096)
def is_counted(name: str) -> bool:
    """Whether a resource of this name plays a part in where a pod can go; others are passed over."""
    if name in _NAMES or name.startswith(_PREFIXES):
        return True
    return "/" in name and (not name.startswith("requests.") or "kubernetes.io/" in name)


def units_of(name: str, text: str, where: str) -> int:
    """A quantity in the units of its kind, rounded up: millicores, bytes, pieces."""
    try:
        units = parse_quantity(text, scale=_scale(name))
    except BadQuantity as error:
        raise _bad(error.summary, name, text, where, error.expected) from error
    if units < 0:
        raise _bad("negative quantity", name, text, where, "at least 0")
    return units


@lru_cache(maxsize=4096)
def _plain_ask(requests: tuple[tuple[str, str], ...]) -> ResourceList:
    """The ask of a pod with one container and nothing special, which is most of them."""
    amounts = [
        (name, units)
        for name, text in requests
        if is_counted(name) and (units := units_of(name, text, "spec.containers[0].resources.requests"))
    ]
    amounts.append((PODS, 1))
    return tuple(sorted(amounts))


def _total(spec: PodSpec, containers: list[_Exact], inits: list[_Exact], whole: _Exact) -> ResourceList:
    total: _Exact = {}
    for amounts in containers:
        _add(total, amounts)
    sidecars: _Exact = {}
    peaks: list[_Exact] = []
    for container, amounts in zip(spec.init_containers or (), inits, strict=True):
        peak = dict(sidecars)
        _add(peak, amounts)
        peaks.append(peak)
        if _is_sidecar(container):
            _add(sidecars, amounts)
    _add(total, sidecars)
    total = _greatest((total, *peaks))
    total.update(whole)
    _add(total, _exact(spec.overhead, "spec.overhead"))
    rounded = [(name, _rounded_up(name, exact)) for name, exact in total.items() if exact > 0]
    rounded.append((PODS, 1))
    rounded.extend((kind, 1) for kind in _port_kinds(spec))
    rounded.sort()
    return tuple(rounded)


def _own(container: Container, part: str, index: int) -> _Exact:
    return _exact(container.resources.requests, f"{part}[{index}].resources.requests")


def _exact(requests: Mapping[str, str] | None, where: str) -> _Exact:
    if not requests:
        return {}
    return {name: _billionths(name, text, where) for name, text in requests.items() if is_counted(name)}


@lru_cache(maxsize=4096)
def _billionths(name: str, text: str, where: str) -> int:
    """Exact; but what is larger than 9 billion is rounded up to units first."""
    units = units_of(name, text, where)
    try:
        return parse_quantity(text, scale=_NANO)
    except BadQuantity:
        return units * (_NANO // _scale(name))


def _rounded_up(name: str, exact: int) -> int:
    units = -(-exact * _scale(name) // _NANO)
    if units > QUANTITY_MAX:
        raise _bad("the pod asks for more than can be counted", name, str(units), "spec", str(QUANTITY_MAX))
    return units


def _scale(name: str) -> int:
    return 1000 if name == _CPU else 1


def _add(total: _Exact, amounts: Mapping[str, int]) -> None:
    for name, exact in amounts.items():
        total[name] = total.get(name, 0) + exact


def _greatest(alternatives: Iterable[_Exact]) -> _Exact:
    greatest: _Exact = {}
    for amounts in alternatives:
        for name, exact in amounts.items():
            if exact > greatest.get(name, -1):
                greatest[name] = exact
    return greatest


def _pod_level(amounts: _Exact) -> _Exact:
    """What a pod can ask for as a whole; other names have no meaning there."""
    return {
        name: exact
        for name, exact in amounts.items()
        if name in (_CPU, "memory") or name.startswith("hugepages-")
    }


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == _SIDECAR


def _is_infeasible(pod: Pod) -> bool:
    """Whether a resize was refused for good: then what is wanted will not be had."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible"
    return False


def _is_as_wanted(pod: Pod, statuses: Mapping[str, ContainerStatus]) -> bool:
    """Whether the kubelet tells of nothing but what the spec says, which is the rule."""
    if pod.status.resources is not None:
        return False
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        told = statuses.get(container.name)
        if told is not None and told.resources is not None:
            wanted = container.resources.requests or {}
            if (told.resources.requests or {}) != wanted or (told.allocated_resources or wanted) != wanted:
                return False
    return True


def _port_kinds(spec: PodSpec) -> tuple[str, ...]:
    sidecars = filter(_is_sidecar, spec.init_containers or ())
    kinds = {
        port_kind(port.protocol, port.host_port)
        for container in (*spec.containers, *sidecars)
        for port in container.ports or ()
        if port.host_port > 0
    }
    return tuple(sorted(kinds))


def _bad(summary: str, name: str, text: str, where: str, expected: str) -> BadRequest:
    return BadRequest(summary, where=f"{where}[{name}]", found=repr(text[:80]), expected=expected)

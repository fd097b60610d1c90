"""Requests and usage of pods. The numbered examples were verified on a live control plane: kube-scheduler
used a node of exactly that size and rejected one that was a unit smaller."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.kube.types import Pod
from penstock.model.exclusion_key import ExclusionKey
from penstock.podspec.exclusion_keys import host_port_keys
from penstock.podspec.pod_resources import (
    pod_requests,
    pod_usage,
    units_of,
)

MI = 1 << 20
GI = 1 << 30


def container(cpu: str = "", memory: str = "", *, name: str = "main", **more: Any) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory, **more.pop("requests", {})}
    return {
        "name": name,
        "resources": {"requests": {resource: text for resource, text in requests.items() if text}},
        **more,
    }


def sidecar(cpu: str = "", memory: str = "", **more: Any) -> dict[str, Any]:
    return container(cpu, memory, restartPolicy="Always", **more)


def pod_of(
    *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), status: Any = None, **spec: Any
) -> Pod:
    raw = {"spec": {"containers": list(containers), **spec}, "status": status or {}}
    if init:
        raw["spec"]["initContainers"] = list(init)
    return msgspec.convert(raw, Pod)


def expected_requests(**resources: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({"pods": 1, **resources}.items()))


# The verified examples


def test_example_1_init_containers_run_one_after_the_other() -> None:
    pod = pod_of(
        container("1", "1Gi"),
        container("500m", "512Mi"),
        init=(container("2", "1Gi"), container("500m", "3Gi")),
    )
    assert pod_requests(pod) == expected_requests(cpu=2000, memory=3 * GI)


def test_example_2_an_init_container_runs_beside_the_sidecars_before_it() -> None:
    pod = pod_of(container("1"), init=(container("1"), sidecar("300m"), container("2"), sidecar("200m")))
    assert pod_requests(pod) == expected_requests(cpu=2300)


def test_example_3_a_later_sidecar_does_not_add_to_an_init_container() -> None:
    main = container("1900m")
    assert pod_requests(pod_of(main, init=(container("2"), sidecar("300m")))) == expected_requests(cpu=2200)
    assert pod_requests(pod_of(main, init=(sidecar("300m"), container("2")))) == expected_requests(cpu=2300)


def test_example_4_pod_level_requests_replace_those_of_the_containers() -> None:
    pod = pod_of(
        container("500m", "256Mi"),
        container("500m"),
        resources={"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}},
    )
    assert pod_requests(pod) == expected_requests(cpu=2000, memory=256 * MI)


def test_example_5_limits_arrive_as_requests_and_overhead_is_added() -> None:
    filled_in = {
        "limits": {"cpu": "1", "example.com/gpu": "2"},
        "requests": {"cpu": "1", "example.com/gpu": "2"},
    }
    pod = pod_of({"name": "main", "resources": filled_in})
    assert pod_requests(pod) == expected_requests(cpu=1000, **{"example.com/gpu": 2})
    with_overhead = pod_of(container("1", "1Gi"), overhead={"cpu": "250m", "memory": "120Mi"})
    assert pod_requests(with_overhead) == expected_requests(cpu=1250, memory=1144 * MI)


def test_example_6_a_resize_counts_in_full_until_it_is_infeasible() -> None:
    reported = {"name": "main", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}

    def resized(*conditions: dict[str, str]) -> Pod:
        return pod_of(
            container("2"), status={"containerStatuses": [reported], "conditions": list(conditions)}
        )

    def pending(reason: str) -> Pod:
        return resized(
            {"type": "Ready", "status": "True"},
            {"type": "PodResizePending", "status": "True", "reason": reason},
        )

    assert pod_usage(resized()) == expected_requests(cpu=2000)
    assert pod_usage(pending("Deferred")) == expected_requests(cpu=2000)
    assert pod_usage(pending("Infeasible")) == expected_requests(cpu=1000)
    assert pod_requests(pending("Infeasible")) == expected_requests(cpu=2000)


# Usage


def test_a_pod_without_resource_status_uses_its_requests() -> None:
    pod = pod_of(container("1", "1Gi"), status={"containerStatuses": [{"name": "main"}]})
    assert pod_usage(pod) == pod_requests(pod) == expected_requests(cpu=1000, memory=GI)


@pytest.mark.parametrize(
    ("actual", "allocated", "units"),
    [("1", "1", 1000), ("2", "1", 2000), ("1", "3", 3000), ("500m", "250m", 1000), ("1000m", "1", 1000)],
)
def test_the_largest_of_desired_actual_and_allocated_counts(actual: str, allocated: str, units: int) -> None:
    reported = {
        "name": "main",
        "resources": {"requests": {"cpu": actual}},
        "allocatedResources": {"cpu": allocated},
    }
    assert pod_usage(pod_of(container("1"), status={"containerStatuses": [reported]})) == expected_requests(
        cpu=units
    )


def test_status_counts_for_sidecars_and_not_for_init_containers() -> None:
    def reported(name: str) -> dict[str, Any]:
        return {"name": name, "resources": {"requests": {"cpu": "5"}}}

    status = {"initContainerStatuses": [reported("first"), reported("aside")]}
    init = (container("1", name="first"), sidecar("1", name="aside"))
    assert pod_usage(pod_of(container("1"), init=init, status=status)) == expected_requests(cpu=6000)
    status = {"initContainerStatuses": [reported("first")]}
    assert pod_usage(pod_of(container("1"), init=init, status=status)) == expected_requests(cpu=2000)


def test_pod_level_allocated_resources_count() -> None:
    status = {"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "2"}}
    whole = {"requests": {"cpu": "1", "memory": "1Gi"}}
    assert pod_usage(pod_of(container(), resources=whole, status=status)) == expected_requests(
        cpu=3000, memory=GI
    )
    status["conditions"] = [{"type": "PodResizePending", "reason": "Infeasible"}]
    assert pod_usage(pod_of(container(), resources=whole, status=status)) == expected_requests(cpu=3000)


# Names, units, ports


def test_a_pod_without_requests_requests_one_pod() -> None:
    assert pod_requests(pod_of(container())) == expected_requests()
    assert pod_requests(pod_of(container("0", "0"))) == expected_requests()
    assert pod_requests(pod_of(container("0"), container())) == expected_requests()
    assert pod_requests(pod_of({"name": "main"})) == expected_requests()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cpu", True),
        ("memory", True),
        ("ephemeral-storage", True),
        ("hugepages-2Mi", True),
        ("attachable-volumes-csi-x", True),
        ("nvidia.com/gpu", True),
        ("kubernetes.io/batch-cpu", True),
        ("requests.kubernetes.io/x", True),
        ("requests.nvidia.com/gpu", False),
        ("pods", False),
        ("storage", False),
        ("gpu", False),
    ],
)
def test_resources_that_are_not_scheduled_by_are_ignored(name: str, counts: bool) -> None:
    ask = {name: 2000 if name == "cpu" else 2} if counts else {}
    assert pod_requests(pod_of(container(requests={name: "2"}))) == expected_requests(**ask)
    assert pod_requests(
        pod_of(container(requests={name: "1"}), container(requests={name: "1"}))
    ) == expected_requests(**ask)
    if not counts:
        assert pod_requests(pod_of(container(requests={name: "bad"}))) == expected_requests()


def test_only_some_resources_can_be_requested_at_pod_level() -> None:
    whole = {"requests": {"hugepages-2Mi": "4Mi", "ephemeral-storage": "9Gi", "example.com/gpu": "7"}}
    pod = pod_of(container("1", requests={"example.com/gpu": "1"}), resources=whole)
    assert pod_requests(pod) == expected_requests(cpu=1000, **{"example.com/gpu": 1, "hugepages-2Mi": 4 * MI})


def test_sums_are_rounded_up_after_adding() -> None:
    assert pod_requests(pod_of(container("500u", "500m"))) == expected_requests(cpu=1, memory=1)
    assert pod_requests(pod_of(container("500u", "500m"), container("500u", "500m"))) == expected_requests(
        cpu=1, memory=1
    )
    assert pod_requests(pod_of(container("600u"), container("600u"))) == expected_requests(cpu=2)
    assert pod_requests(pod_of(container("1", "64Gi"), container("1", "64Gi"))) == expected_requests(
        cpu=2000, memory=128 * GI
    )


@pytest.mark.parametrize(
    ("pod", "where"),
    [
        (pod_of(container("1x")), "spec.containers[0].resources.requests[cpu]"),
        (pod_of(container("-1")), "spec.containers[0].resources.requests[cpu]"),
        (pod_of(container("1"), container("1", "Gi")), "spec.containers[1].resources.requests[memory]"),
        (
            pod_of(container("1"), init=(container(requests={"a.b/c": "?"}),)),
            "spec.initContainers[0].resources.requests[a.b/c]",
        ),
        (pod_of(container("1"), overhead={"cpu": "."}), "spec.overhead[cpu]"),
        (pod_of(container("1"), resources={"requests": {"memory": "-1"}}), "spec.resources.requests[memory]"),
        (pod_of(container("", "7Ei"), container("", "7Ei")), "spec[memory]"),
    ],
)
def test_a_bad_quantity_is_reported_with_its_location(pod: Pod, where: str) -> None:
    with pytest.raises(BadRequest) as caught:
        pod_requests(pod)
    assert caught.value.where == where
    assert caught.value.found
    assert caught.value.expected


def test_a_bad_quantity_in_a_status_is_reported_with_its_container() -> None:
    reported = {
        "name": "main",
        "resources": {"requests": {"cpu": "1"}},
        "allocatedResources": {"cpu": "many"},
    }
    with pytest.raises(
        BadRequest, match=r"status of container main: allocatedResources\[cpu\]: not a quantity"
    ):
        pod_usage(pod_of(container("1"), status={"containerStatuses": [reported]}))


def port_keys(*ports: str) -> tuple[ExclusionKey, ...]:
    return tuple(ExclusionKey("node", f"host port {port}") for port in ports)


def test_host_ports_of_containers_and_sidecars_are_keys() -> None:
    def ports(*reported: dict[str, Any]) -> dict[str, Any]:
        return {"ports": list(reported)}

    pod = pod_of(
        container(
            "1", **ports({"hostPort": 8080}, {"containerPort": 9}, {"hostPort": 53, "protocol": "UDP"})
        ),
        container(
            **ports({"hostPort": 8080, "hostIP": "10.0.0.1"}, {"hostPort": 8080, "hostIP": "10.0.0.2"})
        ),
        init=(
            container(**ports({"hostPort": 1})),
            sidecar(**ports({"hostPort": 2, "protocol": "SCTP"})),
        ),
    )
    assert host_port_keys(pod) == port_keys("2/SCTP", "53/UDP", "8080/TCP")
    assert pod_requests(pod) == pod_usage(pod) == expected_requests(cpu=1000)
    empty, tcp = (
        pod_of(container(**ports({"hostPort": 8080, "protocol": protocol}))) for protocol in ("", "TCP")
    )
    assert host_port_keys(empty) == host_port_keys(tcp) == port_keys("8080/TCP")
    assert host_port_keys(pod_of(container("1"))) == ()
    assert pod_requests(pod_of(container("1", **ports({"containerPort": 80})))) == expected_requests(cpu=1000)


@pytest.mark.parametrize("of", ["a container", "a sidecar"])
def test_a_host_port_of_any_container_is_a_key(of: str) -> None:
    port: dict[str, Any] = {"ports": [{"hostPort": 8080}]}
    pod = (
        pod_of(container("1", **port))
        if of == "a container"
        else pod_of(container("1"), init=(sidecar(**port),))
    )
    assert host_port_keys(pod) == port_keys("8080/TCP")
    assert pod_requests(pod) == pod_usage(pod) == expected_requests(cpu=1000)


def test_pods_of_one_template_share_their_requests() -> None:
    assert pod_requests(pod_of(container("1", "1Gi"))) is pod_requests(pod_of(container("1", "1Gi")))


def test_units_depend_on_the_resource() -> None:
    assert units_of("cpu", "1500m", "x") == 1500
    assert units_of("memory", "1.5Gi", "x") == 3 * GI // 2


# Compared with the formula, written independently

QUANTITIES = {
    "": Fraction(0),
    "0": Fraction(0),
    "1": Fraction(1),
    "1500m": Fraction(3, 2),
    "333u": Fraction(333, 10**6),
    "7n": Fraction(7, 10**9),
    "2.5": Fraction(5, 2),
    "3Ki": Fraction(3072),
    "20G": Fraction(20 * 10**9),
}
NAMES = ("cpu", "memory", "a.example/b")
quantities = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([text for text in QUANTITIES if text]))


def formula(
    name: str,
    containers: list[dict[str, str]],
    init: list[tuple[bool, dict[str, str]]],
    whole: dict[str, str],
    overhead: dict[str, str],
) -> int:
    def of(requests: dict[str, str]) -> Fraction:
        return QUANTITIES[requests.get(name, "")]

    together = sum(map(of, containers), Fraction(0)) + sum(
        (of(requests) for is_sidecar, requests in init if is_sidecar), Fraction(0)
    )
    alone = [
        of(requests) + sum((of(before) for is_sidecar, before in init[:index] if is_sidecar), Fraction(0))
        for index, (_, requests) in enumerate(init)
    ]
    total = max([together, *alone])
    if name in whole and name in ("cpu", "memory"):
        total = of(whole)
    total += of(overhead)
    return ceil(total * 1000) if name == "cpu" else ceil(total)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(quantities, min_size=1, max_size=3),
    st.lists(st.tuples(st.booleans(), quantities), max_size=4),
    quantities,
    quantities,
)
def test_requests_equal_the_formula(
    containers: list[dict[str, str]],
    init: list[tuple[bool, dict[str, str]]],
    whole: dict[str, str],
    overhead: dict[str, str],
) -> None:
    pod = pod_of(
        *(container(requests=requests, name=f"c{index}") for index, requests in enumerate(containers)),
        init=tuple(
            (sidecar if is_sidecar else container)(requests=requests, name=f"i{index}")
            for index, (is_sidecar, requests) in enumerate(init)
        ),
        resources={"requests": whole},
        overhead=overhead,
    )
    expected = {name: formula(name, containers, init, whole, overhead) for name in NAMES}
    assert pod_requests(pod) == expected_requests(
        **{name: units for name, units in expected.items() if units}
    )
    assert pod_usage(pod) == pod_requests(pod)


@settings(max_examples=100, deadline=None)
@given(quantities, quantities, quantities, st.booleans())
def test_usage_is_the_largest_of_three(
    desired: dict[str, str], actual: dict[str, str], allocated: dict[str, str], infeasible: bool
) -> None:
    reported = {"name": "main", "resources": {"requests": actual}, "allocatedResources": allocated}
    conditions = [{"type": "PodResizePending", "reason": "Infeasible"}] if infeasible else []
    pod = pod_of(
        container(requests=desired), status={"containerStatuses": [reported], "conditions": conditions}
    )
    alternatives = [actual, allocated] if infeasible else [desired, actual, allocated]
    expected = {
        name: ceil(
            max(QUANTITIES[side.get(name, "")] for side in alternatives) * (1000 if name == "cpu" else 1)
        )
        for name in NAMES
    }
    assert pod_usage(pod) == expected_requests(**{name: units for name, units in expected.items() if units})

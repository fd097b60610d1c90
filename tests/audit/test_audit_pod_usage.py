"""Usage of pods: examples that were verified with kube-scheduler on nodes of this size."""

from __future__ import annotations

from fractions import Fraction

import pytest

from penstock.audit.pod_usage import allocatable_units, parse_quantity, pod_usage
from penstock.errors import BadRequest
from penstock.kube.types import (
    Condition,
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)

GI, MI = 1 << 30, 1 << 20


def ask(cpu: str = "", memory: str = "", **more: str) -> ResourceRequirements:
    fields = {
        "cpu": cpu,
        "memory": memory,
        **{resource.replace("__", "/"): units for resource, units in more.items()},
    }
    return ResourceRequirements(requests={resource: units for resource, units in fields.items() if units})


def container(cpu: str = "", memory: str = "", **more: str) -> Container:
    return Container(name=f"{cpu}-{memory}", resources=ask(cpu, memory, **more))


def sidecar(cpu: str) -> Container:
    return Container(name=f"sidecar-{cpu}", resources=ask(cpu), restart_policy="Always")


def pod(*containers: Container, init: tuple[Container, ...] = (), **more: object) -> Pod:
    return Pod(spec=PodSpec(containers=containers, init_containers=init, **more))  # type: ignore[arg-type]


EXAMPLES = [
    (
        pod(
            container("1", "1Gi"),
            container("500m", "512Mi"),
            init=(container("2", "1Gi"), container("500m", "3Gi")),
        ),
        {"cpu": 2000, "memory": 3 * GI},
    ),
    (
        pod(container("1"), init=(container("1"), sidecar("300m"), container("2"), sidecar("200m"))),
        {"cpu": 2300},
    ),
    (pod(container("1900m"), init=(container("2"), sidecar("300m"))), {"cpu": 2200}),
    (pod(container("1900m"), init=(sidecar("300m"), container("2"))), {"cpu": 2300}),
    (
        # Its limit of 1Gi for the whole became a request for what its containers ask for.
        pod(container("500m", "256Mi"), container("500m"), resources=ask("2", "256Mi")),
        {"cpu": 2000, "memory": 256 * MI},
    ),
    (pod(container("1", example__gpu="2")), {"cpu": 1000, "example/gpu": 2}),
    (
        pod(container("1", "1Gi"), overhead={"cpu": "250m", "memory": "120Mi"}),
        {"cpu": 1250, "memory": 1144 * MI},
    ),
    (pod(container("500u"), container("500u")), {"cpu": 1}),
    (pod(container("100u")), {"cpu": 1}),
    (pod(Container()), {}),
    (pod(container("0")), {}),
    (pod(container("1", unheard="1"), resources=ask("2", ephemeral="1")), {"cpu": 2000}),
]


@pytest.mark.parametrize(("given", "expected"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_usage_of_a_pod_is_that_of_kube_scheduler(given: Pod, expected: dict[str, int]) -> None:
    assert pod_usage(given) == {**expected, "pods": 1}


def resized(reason: str, *, is_sidecar: bool = False) -> Pod:
    """It had 1 cpu, and is to have 2."""
    one = Container(name="one", resources=ask("2"), restart_policy="Always" if is_sidecar else "")
    status = ContainerStatus(name="one", resources=ask("1"), allocated_resources={"cpu": "1"})
    pending = Condition(type="PodResizePending", status="True", reason=reason)
    fields: dict[str, object] = {"init_container_statuses" if is_sidecar else "container_statuses": (status,)}
    return Pod(
        spec=PodSpec(init_containers=(one,)) if is_sidecar else PodSpec(containers=(one,)),
        status=PodStatus(conditions=(pending,) if reason else (), **fields),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("is_sidecar", [False, True])
@pytest.mark.parametrize(("reason", "cpu"), [("", 2000), ("Deferred", 2000), ("Infeasible", 1000)])
def test_a_resize_counts_unless_it_is_infeasible(reason: str, cpu: int, is_sidecar: bool) -> None:
    assert pod_usage(resized(reason, is_sidecar=is_sidecar)) == {"cpu": cpu, "pods": 1}


def test_a_shrinking_pod_counts_with_its_actual_resources() -> None:
    status = ContainerStatus(name="one", resources=ask("1"), allocated_resources={"cpu": "3"})
    one = Container(name="one", resources=ask("2"))
    shrinking = Pod(spec=PodSpec(containers=(one,)), status=PodStatus(container_statuses=(status,)))
    assert pod_usage(shrinking)["cpu"] == 3000


def test_pod_level_actual_resources_count_for_the_pod_level_request() -> None:
    spec = PodSpec(containers=(container("1", "1Gi"),), resources=ask("2"))
    status = PodStatus(resources=ask("3", "9Gi"), allocated_resources={"cpu": "1"})
    assert pod_usage(Pod(spec=spec, status=status)) == {"cpu": 3000, "memory": GI, "pods": 1}


@pytest.mark.parametrize(("reason", "cpu"), [("Deferred", 2000), ("Infeasible", 1000)])
def test_a_pod_level_resize_counts_unless_it_is_infeasible(reason: str, cpu: int) -> None:
    pending = Condition(type="PodResizePending", status="True", reason=reason)
    status = PodStatus(resources=ask("1"), allocated_resources={"cpu": "1"}, conditions=(pending,))
    spec = PodSpec(containers=(container("500m"),), resources=ask("2"))
    assert pod_usage(Pod(spec=spec, status=status)) == {"cpu": cpu, "pods": 1}


def test_allocatable_has_whole_units_of_counted_resources() -> None:
    fields = {
        "cpu": "3920m",
        "memory": "7Gi",
        "pods": "110",
        "hugepages-2Mi": "0",
        "example.com/gpu": "8",
        "odd": "1",
    }
    assert allocatable_units(fields) == {"cpu": 3920, "memory": 7 * GI, "pods": 110, "example.com/gpu": 8}
    assert allocatable_units(None) == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5Gi", 3 * GI // 2),
        (".5", Fraction(1, 2)),
        ("12e6", 12_000_000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("100n", Fraction(1, 10**7)),
        ("2Ei", 2**61),
        ("5e-1", Fraction(1, 2)),
    ],
)
def test_a_quantity_is_parsed_exactly(text: str, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "m", "1x", "1.2.3", "1 Gi", "1Kim", "--1", "1e999"])
def test_an_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_quantity(text)

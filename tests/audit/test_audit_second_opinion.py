"""The backend's and the auditor's computation of pod usage are independent and must agree on every pod."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.pod_usage import pod_usage as audited_pod_usage
from penstock.kube.types import (
    Condition,
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from penstock.podspec.pod_resources import pod_usage

KINDS = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu", "unheard-of")
QUANTITIES = ("0", "1", "2", "100m", "1500m", "500u", "1n", "1Gi", "1.5Gi", "3e2", "0.1")

quantities = st.none() | st.dictionaries(st.sampled_from(KINDS), st.sampled_from(QUANTITIES), max_size=4)
resources = st.builds(lambda requests: ResourceRequirements(requests=requests), quantities)


def containers(prefix: str, policies: tuple[str, ...]) -> st.SearchStrategy[tuple[Container, ...]]:
    one = st.builds(
        lambda asked, policy: Container(resources=asked, restart_policy=policy),
        resources,
        st.sampled_from(policies),
    )
    return st.lists(one, max_size=3).map(
        lambda found: tuple(
            Container(name=f"{prefix}{place}", resources=one.resources, restart_policy=one.restart_policy)
            for place, one in enumerate(found)
        )
    )


def statuses(prefix: str) -> st.SearchStrategy[tuple[ContainerStatus, ...] | None]:
    numbered = st.builds(
        lambda place, has, given: ContainerStatus(
            name=f"{prefix}{place}", resources=has, allocated_resources=given
        ),
        st.integers(0, 2),
        st.none() | resources,
        quantities,
    )
    return st.none() | st.lists(numbered, max_size=3, unique_by=lambda one: one.name).map(tuple)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    whole = draw(st.none() | resources)
    has = draw(st.none() | resources)
    if has is not None and whole is not None:
        # A kubelet tells of every resource that a pod asks for as a whole.
        has = ResourceRequirements(requests={**(whole.requests or {}), **(has.requests or {})})
    reason = draw(st.sampled_from(("", "Deferred", "Infeasible")))
    return Pod(
        spec=PodSpec(
            node_name="n0",
            containers=draw(containers("c", ("",))),
            init_containers=draw(st.none() | containers("i", ("", "Always"))),
            resources=whole,
            overhead=draw(quantities),
        ),
        status=PodStatus(
            container_statuses=draw(statuses("c")),
            init_container_statuses=draw(statuses("i")),
            resources=has,
            allocated_resources=draw(quantities),
            conditions=(Condition(type="PodResizePending", status="True", reason=reason),),
        ),
    )


@given(pods())
def test_backend_and_auditor_agree_on_the_usage_of_a_pod(pod: Pod) -> None:
    assert dict(pod_usage(pod)) == audited_pod_usage(pod)

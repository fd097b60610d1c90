"""A waiting pod as a member of its group, or the problem that keeps it from being scheduled."""

from __future__ import annotations

from penstock.errors import BadRequest
from penstock.kube.types import Pod
from penstock.podspec.constraints import VolumeLookup, requirements_of
from penstock.podspec.controllers import controller_ref_of
from penstock.podspec.exclusion_keys import host_port_keys
from penstock.podspec.grouping import GroupMembership
from penstock.podspec.pod_resources import pod_requests
from penstock.podspec.problems import INVALID_SPEC, PodProblem
from penstock.protocol.facts import MemberSet

__all__ = ["member_of"]


def member_of(pod: Pod, membership: GroupMembership, volumes: VolumeLookup) -> MemberSet | PodProblem:
    if membership.problems:
        return PodProblem(INVALID_SPEC, "; ".join(membership.problems))
    try:
        requests = pod_requests(pod)
    except BadRequest as error:
        return PodProblem(INVALID_SPEC, str(error))
    requirements = requirements_of(pod, volumes)
    if requirements.problems:
        reason = requirements.problems[0].reason
        return PodProblem(reason, "; ".join(problem.message for problem in requirements.problems))
    host_ports = host_port_keys(pod)
    return MemberSet(
        workload=membership.workload,
        member=pod.metadata.uid,
        index=membership.index,
        requests=requests,
        constraint=requirements.constraint,
        ready=not pod.spec.scheduling_gates,
        recreated=controller_ref_of(pod.metadata) is not None,
        name=pod.metadata.name,
        brings=host_ports,
        forbids=host_ports,
        prefers=requirements.prefers,
    )

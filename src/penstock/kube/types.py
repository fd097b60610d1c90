"""The objects of Kubernetes, as far as Penstock reads them.

Only the fields that somebody here looks at are decoded, which is what makes lists and watches cheap. Every
field has a default, so that a field that a server leaves out, or an object of a newer version, is still
read. Quantities and times stay texts: whoever needs them parses them, and says where a bad one stood.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Affinity",
    "BatchJob",
    "Condition",
    "Container",
    "ContainerState",
    "ContainerStatus",
    "Deployment",
    "KubeObject",
    "LabelSelector",
    "NativePodGroup",
    "Node",
    "NodeSelectorTerm",
    "NodeTaint",
    "ObjectMeta",
    "OwnerReference",
    "PartialPod",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodGroup",
    "PodSpec",
    "PodTemplateSpec",
    "PodToleration",
    "ReplicaSet",
    "ResourceRequirements",
    "SelectorRequirement",
    "StatefulSet",
    "Volume",
]


class _Part(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Anything within an object; unknown fields are passed over."""


class OwnerReference(_Part, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(_Part, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class KubeObject(_Part, frozen=True):
    """Any object: who it is."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(_Part, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class SelectorRequirement(_Part, frozen=True):
    """Of a node selector term, or of a label selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(_Part, frozen=True):
    match_expressions: tuple[SelectorRequirement, ...] | None = None
    match_fields: tuple[SelectorRequirement, ...] | None = None


class _NodeSelector(_Part, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class LabelSelector(_Part, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[SelectorRequirement, ...] | None = None


class PodAffinityTerm(_Part, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None


class _NodeAffinity(_Part, frozen=True):
    required: _NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _PodAffinity(_Part, frozen=True):
    required: tuple[PodAffinityTerm, ...] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Part, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class NodeTaint(_Part, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class PodToleration(_Part, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class ResourceRequirements(_Part, frozen=True):
    requests: dict[str, str] | None = None


class ContainerPort(_Part, frozen=True):
    host_port: int = 0
    protocol: str = "TCP"


class Container(_Part, frozen=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str = ""


class _ClaimSource(_Part, frozen=True):
    claim_name: str = ""


class Volume(_Part, frozen=True):
    name: str = ""
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: dict[str, object] | None = None


class TopologySpreadConstraint(_Part, frozen=True):
    topology_key: str = ""
    when_unsatisfiable: str = ""


class _SchedulingGate(_Part, frozen=True):
    name: str = ""


class _SchedulingGroup(_Part, frozen=True):
    pod_group_name: str = ""


class _ResourceClaim(_Part, frozen=True):
    name: str = ""


class PodSpec(_Part, frozen=True):
    scheduler_name: str = ""
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    resources: ResourceRequirements | None = None
    overhead: dict[str, str] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    resource_claims: tuple[_ResourceClaim, ...] | None = None
    scheduling_gates: tuple[_SchedulingGate, ...] | None = None
    scheduling_group: _SchedulingGroup | None = None
    active_deadline_seconds: int | None = None
    priority: int | None = None
    restart_policy: str = ""


class _Terminated(_Part, frozen=True):
    exit_code: int = 0
    reason: str = ""
    finished_at: str | None = None


class ContainerState(_Part, frozen=True):
    terminated: _Terminated | None = None


class ContainerStatus(_Part, frozen=True):
    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str] | None = None
    state: ContainerState = ContainerState()


class PodStatus(_Part, frozen=True):
    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str] | None = None


class Pod(KubeObject, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class _BareSpec(_Part, frozen=True):
    scheduler_name: str = ""
    node_name: str = ""


class _BareStatus(_Part, frozen=True):
    phase: str = ""


class PartialPod(KubeObject, frozen=True):
    """As much of a pod as it takes to know where it is: for one that is not readable as a whole."""

    spec: _BareSpec = _BareSpec()
    status: _BareStatus = _BareStatus()


class PodTemplateSpec(KubeObject, frozen=True):
    spec: PodSpec = PodSpec()


class _NodeSpec(_Part, frozen=True):
    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] | None = None


class _NodeStatus(_Part, frozen=True):
    allocatable: dict[str, str] | None = None
    conditions: tuple[Condition, ...] | None = None


class Node(KubeObject, frozen=True):
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class _JobSpec(_Part, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool = False
    active_deadline_seconds: int | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class _JobStatus(_Part, frozen=True):
    start_time: str | None = None
    succeeded: int = 0
    conditions: tuple[Condition, ...] | None = None


class BatchJob(KubeObject, frozen=True):
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()


class _ReplicaSetSpec(_Part, frozen=True):
    replicas: int | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class ReplicaSet(KubeObject, frozen=True):
    spec: _ReplicaSetSpec = _ReplicaSetSpec()


class _StatefulSetSpec(_Part, frozen=True):
    replicas: int | None = None
    pod_management_policy: str = ""
    template: PodTemplateSpec = PodTemplateSpec()


class StatefulSet(KubeObject, frozen=True):
    spec: _StatefulSetSpec = _StatefulSetSpec()


class Deployment(KubeObject, frozen=True):
    """Asked for its labels and annotations alone: its ReplicaSets have the rest."""


class _PodGroupSpec(_Part, frozen=True):
    min_member: int = 0


class PodGroup(KubeObject, frozen=True):
    """Of coscheduling: `scheduling.x-k8s.io/v1alpha1`."""

    spec: _PodGroupSpec = _PodGroupSpec()


class _Gang(_Part, frozen=True):
    min_count: int = 0


class _SchedulingPolicy(_Part, frozen=True):
    gang: _Gang | None = None


class _NativePodGroupSpec(_Part, frozen=True):
    scheduling_policy: _SchedulingPolicy = _SchedulingPolicy()


class NativePodGroup(KubeObject, frozen=True):
    """Of Kubernetes itself: `scheduling.k8s.io/v1alpha2`."""

    spec: _NativePodGroupSpec = _NativePodGroupSpec()


class _ClaimSpec(_Part, frozen=True):
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()


class _PhaseStatus(_Part, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(KubeObject, frozen=True):
    spec: _ClaimSpec = _ClaimSpec()
    status: _PhaseStatus = _PhaseStatus()


class _VolumeNodeAffinity(_Part, frozen=True):
    required: _NodeSelector | None = None


class _VolumeSpec(_Part, frozen=True):
    node_affinity: _VolumeNodeAffinity | None = None


class PersistentVolume(KubeObject, frozen=True):
    spec: _VolumeSpec = _VolumeSpec()

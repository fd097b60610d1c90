"""The Kubernetes API objects that Penstock reads, with the fields that it uses.

Names follow the Kubernetes API. `NodeTaint` and `PodToleration` are the exceptions: `Taint` and `Toleration`
are the types of `penstock.model.constraint`, which these are converted to.

Only fields with a reader are decoded, which keeps lists and watches cheap. Every field has a default, so an
object decodes when the server omits a field or has a newer version of the API. Quantities and timestamps
stay strings: the code that uses one parses it and reports the path of an invalid value.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Affinity",
    "Condition",
    "Container",
    "ContainerState",
    "ContainerStatus",
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
    "PodGroupStatus",
    "PodSpec",
    "PodTemplateSpec",
    "PodToleration",
    "ResourceRequirements",
    "SelectorRequirement",
    "UnstructuredObject",
    "Volume",
]


class _ApiStruct(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Base of all decoded structs; unknown fields are ignored."""


class OwnerReference(_ApiStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(_ApiStruct, frozen=True):
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


class KubeObject(_ApiStruct, frozen=True):
    """Base of the objects with metadata; by itself, an object of which only the metadata is decoded."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(_ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class SelectorRequirement(_ApiStruct, frozen=True):
    """A NodeSelectorRequirement or a LabelSelectorRequirement: they have the same fields."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(_ApiStruct, frozen=True):
    match_expressions: tuple[SelectorRequirement, ...] | None = None
    match_fields: tuple[SelectorRequirement, ...] | None = None


class _NodeSelector(_ApiStruct, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class LabelSelector(_ApiStruct, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[SelectorRequirement, ...] | None = None


class PodAffinityTerm(_ApiStruct, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None


class PreferredSchedulingTerm(_ApiStruct, frozen=True):
    weight: int = 1
    preference: NodeSelectorTerm = NodeSelectorTerm()


class _NodeAffinity(_ApiStruct, frozen=True):
    required: _NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredSchedulingTerm, ...] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _PodAffinity(_ApiStruct, frozen=True):
    required: tuple[PodAffinityTerm, ...] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_ApiStruct, frozen=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class NodeTaint(_ApiStruct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class PodToleration(_ApiStruct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class ResourceRequirements(_ApiStruct, frozen=True):
    requests: dict[str, str] | None = None


class ContainerPort(_ApiStruct, frozen=True):
    host_port: int = 0
    protocol: str = "TCP"


class Container(_ApiStruct, frozen=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str = ""


class _PersistentVolumeClaimVolumeSource(_ApiStruct, frozen=True):
    claim_name: str = ""


class Volume(_ApiStruct, frozen=True):
    name: str = ""
    persistent_volume_claim: _PersistentVolumeClaimVolumeSource | None = None
    ephemeral: dict[str, object] | None = None


class TopologySpreadConstraint(_ApiStruct, frozen=True):
    topology_key: str = ""
    when_unsatisfiable: str = ""


class _PodSchedulingGate(_ApiStruct, frozen=True):
    name: str = ""


class _PodSchedulingGroup(_ApiStruct, frozen=True):
    pod_group_name: str = ""


class _PodResourceClaim(_ApiStruct, frozen=True):
    name: str = ""


class PodSpec(_ApiStruct, frozen=True):
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
    resource_claims: tuple[_PodResourceClaim, ...] | None = None
    scheduling_gates: tuple[_PodSchedulingGate, ...] | None = None
    scheduling_group: _PodSchedulingGroup | None = None
    active_deadline_seconds: int | None = None
    priority: int | None = None
    restart_policy: str = ""


class _ContainerStateTerminated(_ApiStruct, frozen=True):
    exit_code: int = 0
    reason: str = ""
    finished_at: str | None = None


class ContainerState(_ApiStruct, frozen=True):
    terminated: _ContainerStateTerminated | None = None


class ContainerStatus(_ApiStruct, frozen=True):
    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str] | None = None
    state: ContainerState = ContainerState()


class PodStatus(_ApiStruct, frozen=True):
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


class _PartialPodSpec(_ApiStruct, frozen=True):
    scheduler_name: str = ""
    node_name: str = ""


class _PartialPodStatus(_ApiStruct, frozen=True):
    phase: str = ""


class PartialPod(KubeObject, frozen=True):
    """The fields that give a pod's node and phase, for a pod that does not decode as `Pod`."""

    spec: _PartialPodSpec = _PartialPodSpec()
    status: _PartialPodStatus = _PartialPodStatus()


class PodTemplateSpec(KubeObject, frozen=True):
    spec: PodSpec = PodSpec()


class _NodeSpec(_ApiStruct, frozen=True):
    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] | None = None


class _NodeStatus(_ApiStruct, frozen=True):
    allocatable: dict[str, str] | None = None
    conditions: tuple[Condition, ...] | None = None


class Node(KubeObject, frozen=True):
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class UnstructuredObject(KubeObject, frozen=True):
    """An object of any kind, with its spec and status as plain JSON. Items of a list have no `kind`."""

    api_version: str = ""
    kind: str = ""
    spec: dict[str, object] = {}
    status: dict[str, object] = {}


class _PodGroupSpec(_ApiStruct, frozen=True):
    min_member: int = 0
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(_ApiStruct, frozen=True):
    phase: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class PodGroup(KubeObject, frozen=True):
    """The PodGroup of the coscheduling plugin: `scheduling.x-k8s.io/v1alpha1`."""

    spec: _PodGroupSpec = _PodGroupSpec()
    status: PodGroupStatus | None = None


class _GangSchedulingPolicy(_ApiStruct, frozen=True):
    min_count: int = 0


class _PodGroupSchedulingPolicy(_ApiStruct, frozen=True):
    gang: _GangSchedulingPolicy | None = None


class _NativePodGroupSpec(_ApiStruct, frozen=True):
    scheduling_policy: _PodGroupSchedulingPolicy = _PodGroupSchedulingPolicy()


class NativePodGroup(KubeObject, frozen=True):
    """The PodGroup of Kubernetes itself: `scheduling.k8s.io/v1alpha2`."""

    spec: _NativePodGroupSpec = _NativePodGroupSpec()


class _PersistentVolumeClaimSpec(_ApiStruct, frozen=True):
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()


class _PersistentVolumeClaimStatus(_ApiStruct, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(KubeObject, frozen=True):
    spec: _PersistentVolumeClaimSpec = _PersistentVolumeClaimSpec()
    status: _PersistentVolumeClaimStatus = _PersistentVolumeClaimStatus()


class _VolumeNodeAffinity(_ApiStruct, frozen=True):
    required: _NodeSelector | None = None


class _PersistentVolumeSpec(_ApiStruct, frozen=True):
    node_affinity: _VolumeNodeAffinity | None = None


class PersistentVolume(KubeObject, frozen=True):
    spec: _PersistentVolumeSpec = _PersistentVolumeSpec()


class _EventSeries(_ApiStruct, frozen=True):
    last_observed_time: str | None = None


class Event(KubeObject, frozen=True):
    note: str = ""
    event_time: str | None = None
    deprecated_last_timestamp: str | None = None  # of reporters that use the API of before 1.19
    series: _EventSeries | None = None

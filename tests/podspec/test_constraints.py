"""On which nodes a pod may run, and which requirements are unsupported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from penstock.kube.types import PersistentVolume, PersistentVolumeClaim, Pod
from penstock.model.constraint import (
    TAINTS_PROPERTY,
    And,
    HostIn,
    Or,
    Taint,
    Tolerates,
    Toleration,
    TolerationOperator,
    Value,
    ValueOperator,
    encode_taints,
    matches,
)
from penstock.podspec.constraints import Requirements, requirements_of
from penstock.podspec.problems import PodProblem

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"


@dataclass(frozen=True)
class Subject:
    name: str = "n0"
    rank: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


class Volumes:
    """Claims and volumes by name, from JSON of the API server."""

    def __init__(self, claims: Any = None, volumes: Any = None) -> None:
        self._claims = {
            ("ns", name): msgspec.convert(raw, PersistentVolumeClaim) for name, raw in (claims or {}).items()
        }
        self._volumes = {
            name: msgspec.convert(raw, PersistentVolume) for name, raw in (volumes or {}).items()
        }

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.get(name)


def pod_of(*, labels: Any = None, name: str = "p", **spec: Any) -> Pod:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "ns", "labels": labels}, "spec": spec}, Pod
    )


def required_of(known: Volumes | None = None, **spec: Any) -> Requirements:
    return requirements_of(pod_of(**spec), known or Volumes())


def node_affinity(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expression(operator: str, *values: str, key: str = "key") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def fits(requirements: Requirements, name: str = "n0", **properties: str) -> bool:
    return matches(requirements.constraint, Subject(name, 0, properties))


def allowed(requirements: Requirements, properties: Mapping[str, str]) -> bool:
    return matches(requirements.constraint, Subject("n0", 0, properties))


# Node selectors and affinity


def test_a_pod_without_requirements_fits_every_untainted_node() -> None:
    bare = required_of()
    assert bare == Requirements(Tolerates())
    assert fits(bare)
    assert not allowed(bare, {TAINTS_PROPERTY: encode_taints([Taint("a", "", "NoSchedule")])})


def test_all_labels_of_a_node_selector_are_required() -> None:
    selective = required_of(nodeSelector={"b": "2", "a": "1"})
    assert selective.constraint == And(
        (Value("a", ValueOperator.IN, ("1",)), Value("b", ValueOperator.IN, ("2",)), Tolerates())
    )
    assert fits(selective, a="1", b="2", c="3")
    assert not fits(selective, a="1")
    assert not fits(selective, a="1", b="3")


@pytest.mark.parametrize(
    ("test", "absent", "five", "word"),
    [
        (expression("In", "5", "6"), False, True, False),
        (expression("In", "five"), False, False, True),
        (expression("In"), False, False, False),
        (expression("NotIn", "5"), True, False, True),
        (expression("NotIn"), False, False, False),
        (expression("NotIn", "not a label's value"), False, False, False),
        (expression("Exists"), False, True, True),
        (expression("Exists", "5"), False, False, False),
        (expression("DoesNotExist"), True, False, False),
        (expression("Gt", "4"), False, True, False),
        (expression("Gt", "5"), False, False, False),
        (expression("Gt", "0004"), False, True, False),
        (expression("Lt", "6"), False, True, False),
        (expression("Lt", "5"), False, False, False),
        (expression("Lt", "9.5"), False, False, False),
        (expression("Gt", "-1"), False, False, False),
        (expression("Gt", "1", "2"), False, False, False),
        (expression("Lt", "9223372036854775807"), False, True, False),
        (expression("Lt", "9223372036854775808"), False, False, False),
        (expression("Near", "5"), False, False, False),
        (expression("in", "5"), False, False, False),
    ],
)
def test_operators_are_those_of_kubernetes(test: Any, absent: bool, five: bool, word: bool) -> None:
    requirements = required_of(affinity=node_affinity({"matchExpressions": [test]}))
    assert fits(requirements) is absent
    assert fits(requirements, key="5") is five
    assert fits(requirements, key="five") is word


def test_terms_are_alternatives_of_which_each_requires_all_it_names() -> None:
    requirements = required_of(
        affinity=node_affinity(
            {"matchExpressions": [expression("In", "1", key="a"), expression("Exists", key="b")]},
            {"matchExpressions": [expression("In", "2", key="a")]},
        )
    )
    assert fits(requirements, a="1", b="")
    assert fits(requirements, a="2")
    assert not fits(requirements, a="1")
    assert not fits(requirements, b="")


@pytest.mark.parametrize("terms", [(), ({},), ({"matchExpressions": []}, {"matchFields": []})])
def test_an_empty_term_matches_nothing(terms: tuple[Any, ...]) -> None:
    assert not fits(required_of(affinity=node_affinity(*terms)))
    good = {"matchExpressions": [expression("Exists")]}
    assert fits(required_of(affinity=node_affinity(*terms, good)), key="")


def test_an_invalid_requirement_invalidates_only_its_term() -> None:
    bad = {"matchExpressions": [expression("Exists"), expression("Lt", "9.5")]}
    good = {"matchExpressions": [expression("In", "y")]}
    requirements = required_of(affinity=node_affinity(bad, good))
    assert fits(requirements, key="y")
    assert not fits(requirements, key="1")


def test_a_node_can_be_selected_by_name() -> None:
    here = expression("In", "n0", key="metadata.name")
    not_here = expression("NotIn", "n0", key="metadata.name")
    daemon = required_of(affinity=node_affinity({"matchFields": [here]}))
    assert daemon.constraint == And((Or((HostIn(frozenset(["n0"])),)), Tolerates()))
    assert fits(daemon, "n0")
    assert not fits(daemon, "n1")
    elsewhere = required_of(affinity=node_affinity({"matchFields": [not_here]}))
    assert not fits(elsewhere, "n0")
    assert fits(elsewhere, "n1")
    both = required_of(
        affinity=node_affinity({"matchFields": [here], "matchExpressions": [expression("Exists")]})
    )
    assert fits(both, "n0", key="")
    assert not fits(both, "n0")


@pytest.mark.parametrize(
    "test",
    [
        expression("In", "n0", "n1", key="metadata.name"),
        expression("In", key="metadata.name"),
        expression("Exists", key="metadata.name"),
        expression("In", "n0", key="metadata.namespace"),
    ],
)
def test_unsupported_field_selectors_match_nothing(test: Any) -> None:
    assert not fits(required_of(affinity=node_affinity({"matchFields": [test]})))


def test_preferences_are_ignored() -> None:
    requirements = required_of(
        affinity={
            "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {}}]},
            "podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "x"}}]},
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "x"}}]},
        },
        topologySpreadConstraints=[{"topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"}],
    )
    assert requirements == Requirements(Tolerates())


# Tolerations


def test_tolerations_are_sorted_and_without_duplicates() -> None:
    tolerations = [
        {"key": "b", "operator": "Equal", "value": "x"},
        {"key": "b", "value": "x"},
        {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "c", "operator": "Exists", "effect": "PreferNoSchedule"},
        {"key": "d", "operator": "Gt", "value": "5"},
    ]
    expected = Tolerates(
        (
            Toleration("a", TolerationOperator.EXISTS, "", "NoExecute"),
            Toleration("b", TolerationOperator.EQUAL, "x", ""),
        )
    )
    assert required_of(tolerations=tolerations) == Requirements(expected)
    assert required_of(tolerations=tolerations[::-1]) == Requirements(expected)


def test_a_cordoned_node_accepts_a_pod_that_tolerates_it() -> None:
    cordoned = {TAINTS_PROPERTY: encode_taints([Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")])}
    assert not allowed(required_of(), cordoned)
    tolerant = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert allowed(required_of(tolerations=[tolerant]), cordoned)


# Relations between pods


ANTI_AFFINITY_RULE = (
    "required anti-affinity is supported only with topologyKey kubernetes.io/hostname, "
    "in the pod's namespace, and with a selector that matches the pod's own labels"
)


def texts_of(requirements: Requirements) -> list[str]:
    return [problem.message for problem in requirements.problems]


def anti_affinity(*terms: Any) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def term_on(topology: str = "kubernetes.io/hostname", **term: Any) -> dict[str, Any]:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": "x"}}, **term}


@pytest.mark.parametrize(
    "term",
    [
        term_on(),
        term_on(namespaces=["ns"]),
        term_on(namespaces=[]),
        term_on(labelSelector={}),
        term_on(labelSelector={"matchExpressions": [expression("In", "x", "y", key="app")]}),
        term_on(labelSelector={"matchExpressions": [expression("NotIn", "y", key="app")]}),
        term_on(labelSelector={"matchExpressions": [expression("NotIn", "y", key="none")]}),
        term_on(labelSelector={"matchExpressions": [expression("Exists", key="app")]}),
        term_on(labelSelector={"matchExpressions": [expression("DoesNotExist", key="none")]}),
    ],
)
def test_anti_affinity_to_its_own_labels_means_distinct_nodes(term: Any) -> None:
    requirements = required_of(labels={"app": "x", "i": "0"}, affinity=anti_affinity(term))
    assert requirements == Requirements(Tolerates(), distinct_nodes=True)


@pytest.mark.parametrize(
    "term",
    [
        term_on(ZONE),
        term_on(namespaces=["other"]),
        term_on(namespaces=["ns", "other"]),
        term_on(namespaceSelector={}),
        term_on(labelSelector=None),
        term_on(labelSelector={"matchLabels": {"app": "y"}}),
        term_on(labelSelector={"matchLabels": {"app": "x", "more": ""}}),
        term_on(labelSelector={"matchExpressions": [expression("In", "y", key="app")]}),
        term_on(labelSelector={"matchExpressions": [expression("Exists", key="none")]}),
        term_on(labelSelector={"matchExpressions": [expression("DoesNotExist", key="app")]}),
        term_on(labelSelector={"matchExpressions": [expression("Near", "x", key="app")]}),
    ],
)
def test_other_required_anti_affinity_is_unsupported(term: Any) -> None:
    requirements = required_of(labels={"app": "x"}, affinity=anti_affinity(term))
    where = f"spec.affinity.podAntiAffinity.{REQUIRED}[0] (topologyKey {term['topologyKey']})"
    assert texts_of(requirements) == [f"{where}: {ANTI_AFFINITY_RULE}"]
    assert [problem.reason for problem in requirements.problems] == ["UnsupportedSpec"]
    assert not requirements.distinct_nodes


def test_every_unsupported_requirement_is_reported() -> None:
    requirements = required_of(
        labels={"app": "x"},
        affinity={
            "podAffinity": {REQUIRED: [term_on(ZONE)]},
            **anti_affinity(term_on(), term_on(REGION)),
        },
        topologySpreadConstraints=[
            {"topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"},
            {"topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"},
        ],
        resourceClaims=[{"name": "gpu"}],
        volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}],
    )
    assert requirements.distinct_nodes
    assert texts_of(requirements) == [
        f"spec.affinity.podAffinity.{REQUIRED}[0] (topologyKey {ZONE}): "
        "required pod affinity is not supported; use preferred affinity",
        f"spec.affinity.podAntiAffinity.{REQUIRED}[1] (topologyKey {REGION}): {ANTI_AFFINITY_RULE}",
        f"spec.topologySpreadConstraints[1] ({ZONE}): DoNotSchedule is not supported; use ScheduleAnyway",
        "spec.resourceClaims[0] (gpu): resource claims are not supported; request an extended resource",
        "spec.volumes[0] (scratch): generic ephemeral volumes are not supported; "
        "use a PersistentVolumeClaim that is bound",
    ]
    assert {problem.reason for problem in requirements.problems} == {"UnsupportedSpec"}


# Volumes


def test_preferred_node_affinity_becomes_weighted_constraints() -> None:
    fast = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
    terms = [{"weight": weight, "preference": term} for weight, term in ((3, {}), (2, fast), (9, fast))]
    found = required_of(affinity={"nodeAffinity": {PREFERRED: terms}})
    test = Value("disk", ValueOperator.IN, ("fast",))
    assert found.prefers == ((test, 9), (test, 2))
    assert found.problems == ()


UNBOUND = (
    "PersistentVolumeClaim c is not bound to a volume, and Penstock does not bind claims; "
    "use a StorageClass with volumeBindingMode Immediate"
)
CLAIM_VOLUMES = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]


def bound(**more: Any) -> dict[str, Any]:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"}
    return {"metadata": {"name": "c", "annotations": annotations}, "spec": {"volumeName": "v"}, **more}


def claiming(claim: Any, volume: Any = None) -> Requirements:
    claims = {"c": claim} if claim is not None else {}
    volumes = {"v": volume} if volume is not None else {}
    return required_of(Volumes(claims, volumes), volumes=CLAIM_VOLUMES)


@pytest.mark.parametrize(
    ("claim", "reason", "text"),
    [
        (None, "VolumeNotReady", "PersistentVolumeClaim c does not exist"),
        (
            bound(metadata={"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            "VolumeNotReady",
            "PersistentVolumeClaim c is being deleted",
        ),
        (
            bound(status={"phase": "Lost"}),
            "VolumeNotReady",
            "PersistentVolumeClaim c has lost its volume (phase Lost)",
        ),
        (
            {"metadata": {"name": "c"}},
            "VolumeNotReady",
            UNBOUND,
        ),
        (
            {"metadata": {"name": "c"}, "spec": {"volumeName": "v"}},
            "VolumeNotReady",
            UNBOUND,
        ),
        (bound(), "VolumeNotReady", "PersistentVolume v of PersistentVolumeClaim c does not exist"),
        (
            bound(spec={"volumeName": "v", "accessModes": ["ReadWriteOncePod"]}),
            "UnsupportedSpec",
            "PersistentVolumeClaim c: access mode ReadWriteOncePod is not supported; use ReadWriteOnce",
        ),
    ],
)
def test_a_claim_that_cannot_be_used_is_a_problem(claim: Any, reason: str, text: str) -> None:
    assert claiming(claim).problems == (PodProblem(reason, text),)


def test_volumes_without_claims_restrict_nothing() -> None:
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/x"}}, {"name": "c"}]
    assert required_of(volumes=volumes) == Requirements(Tolerates())
    assert claiming(bound(), {"metadata": {"name": "v"}}) == Requirements(Tolerates())


def test_a_bound_volume_restricts_the_nodes() -> None:
    terms = [{"matchExpressions": [expression("In", "a", "b", key="host")]}]
    local = claiming(bound(), {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})
    assert local.problems == ()
    assert fits(local, host="a")
    assert not fits(local, host="c")
    assert not fits(local)


def test_field_selectors_of_a_volume_are_ignored() -> None:
    terms = [{"matchFields": [expression("In", "other", key="metadata.name")]}]
    assert fits(claiming(bound(), {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}))


@pytest.mark.parametrize(
    ("labels", "properties", "expected"),
    [
        ({ZONE: "a"}, {ZONE: "a"}, True),
        ({ZONE: "a"}, {ZONE: "b"}, False),
        ({ZONE: "a"}, {}, True),
        ({ZONE: "a"}, {REGION: "r"}, False),
        ({ZONE: "a__b"}, {ZONE: "b"}, True),
        ({ZONE: "a__b"}, {ZONE: "c"}, False),
        ({ZONE: "a__"}, {ZONE: "c"}, True),
        ({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "r"}, True),
        ({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, False),
        ({BETA_ZONE: "a"}, {ZONE: "a"}, True),
        ({BETA_ZONE: "a"}, {BETA_ZONE: "a", ZONE: "b"}, True),
        ({BETA_ZONE: "a"}, {BETA_ZONE: "b", ZONE: "a"}, False),
        ({BETA_ZONE: "a"}, {REGION: "r"}, False),
        ({ZONE: "a"}, {BETA_ZONE: "a"}, False),
        ({"other": "a"}, {ZONE: "b"}, True),
    ],
)
def test_a_zonal_volume_restricts_the_nodes(
    labels: dict[str, str], properties: dict[str, str], expected: bool
) -> None:
    zoned = claiming(bound(), {"metadata": {"name": "v", "labels": labels}})
    assert zoned.problems == ()
    assert allowed(zoned, properties) is expected


# Equality


def test_pods_of_one_template_have_one_constraint() -> None:
    spec: dict[str, Any] = {
        "nodeSelector": {"b": "2", "a": "1"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            **node_affinity(
                {"matchExpressions": [expression("In", "a", "b", key="host")]},
                {"matchExpressions": [expression("Gt", "5", key="size")]},
            ),
            **anti_affinity(term_on()),
        },
        "volumes": CLAIM_VOLUMES,
    }
    volumes = Volumes({"c": bound()}, {"v": {"metadata": {"name": "v", "labels": {ZONE: "b__a"}}}})
    first = requirements_of(pod_of(name="p0", labels={"app": "x", "i": "0"}, **spec), volumes)
    spec["nodeSelector"] = {"a": "1", "b": "2"}
    second = requirements_of(pod_of(name="p1", labels={"app": "x", "i": "1"}, **spec), volumes)
    assert first == second
    assert hash(first) == hash(second)
    assert first.constraint is second.constraint
    assert required_of(tolerations=spec["tolerations"]) is required_of(tolerations=spec["tolerations"])

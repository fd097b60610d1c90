"""Required anti-affinity on the host name: the rules in a pod's spec, and the resource that stands for each.

A *rule* is a namespace and a label selector. Pods *carry* it (it stands in a required anti-affinity term of
theirs) or are *selected* by it, or both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from penstock.kube.types import LabelSelector, Pod, PodAffinityTerm

__all__ = ["Rule", "Test", "kind_of", "rule_of", "rules_of"]

_HOSTNAME: Final = "kubernetes.io/hostname"
_TEXT_MAX: Final = 80
_ODD: Final = re.compile(r"[^A-Za-z0-9_./-]")  # in no label, though a selector may ask for it
_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9_./=!,() -]")

Test = tuple[str, str, tuple[str, ...]]  # the key of a label, an operator, values in order


@dataclass(frozen=True, slots=True)
class Rule:
    namespace: str
    tests: tuple[Test, ...]  # each once and in order, so that equal rules are equal values

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(_external_usage(test, labels) for test in self.tests)


def rule_of(namespace: str, term: PodAffinityTerm) -> Rule | None:
    """The rule in a term of a pod's anti-affinity; None if it is about other places or namespaces."""
    selector = term.label_selector
    is_here = term.namespace_selector is None and set(term.namespaces or ()) <= {namespace}
    if term.topology_key != _HOSTNAME or not is_here or selector is None:
        return None
    return Rule(namespace, _tests(selector))


def _tests(selector: LabelSelector) -> tuple[Test, ...]:
    tests: set[Test] = {(key, "In", (value,)) for key, value in (selector.match_labels or {}).items()}
    for one in selector.match_expressions or ():
        values = one.values or () if one.operator in ("In", "NotIn") else ()
        tests.add((one.key, one.operator, tuple(sorted(set(values)))))
    return tuple(sorted(tests))


def _external_usage(test: Test, labels: Mapping[str, str]) -> bool:
    key, operator, values = test
    held = labels.get(key)
    match operator:
        case "In":
            return held is not None and held in values
        case "NotIn":
            return held is None or held not in values
        case "Exists":
            return held is not None
        case "DoesNotExist":
            return held is None
    return False


@lru_cache(maxsize=4096)
def kind_of(rule: Rule) -> str:
    """`apart/<namespace>/<selector>`, the selector as people write it, and short."""
    text = ",".join(map(_shown, rule.tests)) or "*"
    is_odd = any(
        _ODD.search(word) for key, operator, values in rule.tests for word in (key, operator, *values)
    )
    if is_odd or len(text) > _TEXT_MAX:
        digest = sha256(repr(rule.tests).encode()).hexdigest()[:12]
        text = f"{_UNREADABLE.sub('?', text)[:_TEXT_MAX]}~{digest}"
    return f"apart/{rule.namespace}/{text}"


def _shown(test: Test) -> str:
    key, operator, values = test
    match operator:
        case "In" if len(values) == 1:
            return f"{key}={values[0]}"
        case "In":
            return f"{key} in ({','.join(values)})"
        case "NotIn":
            return f"{key} notin ({','.join(values)})"
        case "Exists":
            return key
        case "DoesNotExist":
            return f"!{key}"
    return f"{key} {operator}"


def rules_of(pod: Pod) -> Iterable[Rule]:
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return ()
    terms = affinity.pod_anti_affinity.required or ()
    rules = (rule_of(pod.metadata.namespace, term) for term in terms)
    return dict.fromkeys(rule for rule in rules if rule is not None)

"""Required anti-affinity on the host name: the rules in a pod's spec.

A *rule* is a namespace and a label selector. A pod *carries* a rule that is one of its required anti-
affinity terms; it is *selected* by a rule whose selector matches its labels. A pod can be both.

`penstock.backends.kube.anti_affinity` finds the rules that concern a pod; `exclusion_keys` has their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from penstock.kube.types import LabelSelector, Pod, PodAffinityTerm

__all__ = ["AntiAffinityRule", "LabelTest", "rule_of", "rules_of", "selector_text"]

_HOSTNAME: Final = "kubernetes.io/hostname"
_TEXT_MAX: Final = 72
_INVALID_IN_LABEL: Final = re.compile(r"[^A-Za-z0-9_./-]")  # a selector may contain it nevertheless
_UNPRINTABLE: Final = re.compile(r"[^A-Za-z0-9_./=!,() -]")

LabelTest = tuple[str, str, tuple[str, ...]]  # label key, operator, sorted values


@dataclass(frozen=True, slots=True)
class AntiAffinityRule:
    namespace: str
    tests: tuple[LabelTest, ...]  # sorted and without duplicates, so that equivalent rules are equal

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(_passes(test, labels) for test in self.tests)


def rule_of(namespace: str, term: PodAffinityTerm) -> AntiAffinityRule | None:
    """The rule in an anti-affinity term of a pod; None for another topology key or other namespaces."""
    selector = term.label_selector
    is_local = term.namespace_selector is None and set(term.namespaces or ()) <= {namespace}
    if term.topology_key != _HOSTNAME or not is_local or selector is None:
        return None
    return AntiAffinityRule(namespace, _tests(selector))


def rules_of(pod: Pod) -> Iterable[AntiAffinityRule]:
    """The rules that a pod carries, each once."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return ()
    terms = affinity.pod_anti_affinity.required or ()
    rules = (rule_of(pod.metadata.namespace, term) for term in terms)
    return dict.fromkeys(rule for rule in rules if rule is not None)


def _tests(selector: LabelSelector) -> tuple[LabelTest, ...]:
    tests: set[LabelTest] = {(key, "In", (value,)) for key, value in (selector.match_labels or {}).items()}
    for one in selector.match_expressions or ():
        values = one.values or () if one.operator in ("In", "NotIn") else ()
        tests.add((one.key, one.operator, tuple(sorted(set(values)))))
    return tuple(sorted(tests))


def _passes(test: LabelTest, labels: Mapping[str, str]) -> bool:
    key, operator, values = test
    value = labels.get(key)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


@lru_cache(maxsize=4096)
def selector_text(rule: AntiAffinityRule) -> str:
    """The selector of a rule as kubectl writes it.

    One that is long, or contains what no label can, is cut and made unique by a digest.
    """
    text = ",".join(map(_test_text, rule.tests)) or "*"
    words = (word for key, operator, values in rule.tests for word in (key, operator, *values))
    if len(text) > _TEXT_MAX or any(_INVALID_IN_LABEL.search(word) for word in words):
        digest = sha256(repr(rule.tests).encode()).hexdigest()[:12]
        text = f"{_UNPRINTABLE.sub('?', text)[:_TEXT_MAX]}~{digest}"
    return text


def _test_text(test: LabelTest) -> str:
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

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.constraint import (
    TAINTS_PROPERTY,
    And,
    BadConstraint,
    Constraint,
    HostIn,
    Hostlist,
    Not,
    Or,
    Properties,
    Ranks,
    Taint,
    Tolerates,
    Toleration,
    TolerationOperator,
    Value,
    ValueOperator,
    decode_taints,
    encode_taints,
    matches,
    parse_constraint,
)
from penstock.model.document import parse_document


@dataclass(frozen=True)
class Node:
    name: str = "n0"
    rank: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


def parse(text: str) -> Constraint | None:
    return parse_constraint(parse_document(text, depth_max=128))


def refusal(text: str) -> BadConstraint:
    with pytest.raises(BadConstraint) as caught:
        parse(text)
    assert caught.value.where
    assert caught.value.found
    assert caught.value.expected
    return caught.value


ALL = Properties(())
NONE = Properties(("never",))


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("{}", None),
        ('{"properties": ["a", "^b"]}', Properties(("a", "^b"))),
        ("properties: ['a']", Properties(("a",))),
        ('{"properties": []}', Properties(())),
        ('{"properties": ["arm-v9@core", "größe=1"]}', Properties(("arm-v9@core", "größe=1"))),
        ('{"hostlist": ["n[0-1]", "x"]}', Hostlist(frozenset(["n0", "n1", "x"]))),
        ('{"ranks": ["0-1", "5"]}', Ranks(frozenset([0, 1, 5]))),
        ("ranks: [0]", Ranks(frozenset([0]))),
        ('{"and": []}', And(())),
        ('{"or": [{"ranks": ["0"]}]}', Or((Ranks(frozenset([0])),))),
        ('{"not": [{"properties": ["a"]}]}', Not((Properties(("a",)),))),
        ('{"or": [{}]}', Or((And(()),))),
        (
            '{"and": [{"or": [{"hostlist": ["foo"]}]}, {"not": [{"properties": ["a", "b"]}]}]}',
            And((Or((Hostlist(frozenset(["foo"])),)), Not((Properties(("a", "b")),)))),
        ),
    ],
)
def test_a_constraint_is_read(text: str, constraint: Constraint | None) -> None:
    assert parse(text) == constraint


@pytest.mark.parametrize(
    ("text", "summary", "where"),
    [
        ("[]", "constraint is not a mapping", "constraints"),
        ("~", "constraint is not a mapping", "constraints (line 1)"),
        (
            '{"and": [], "or": []}',
            "constraint has more than one operator",
            "constraints",
        ),
        ('{"nope": []}', "unknown constraint operator: nope", "constraints"),
        ('{"And": []}', "unknown constraint operator: And", "constraints"),
        ('{"properties": "a"}', "properties value must be a sequence", "constraints.properties"),
        ('{"and": {}}', "and value must be a sequence", "constraints.and"),
        ("properties: [a]", "non-string property specified", "constraints.properties[0] (line 1)"),
        ('{"properties": [1]}', "non-string property specified", "constraints.properties[0]"),
        ('{"properties": [["a"]]}', "non-string property specified", "constraints.properties[0]"),
        ('{"properties": ["ar^m-v9@core"]}', "ar^m-v9@core is invalid", "constraints.properties[0]"),
        ('{"properties": ["a", "^^b"]}', "^^b is invalid", "constraints.properties[1]"),
        ('{"properties": [""]}', " is invalid", "constraints.properties[0]"),
        ('{"properties": ["^"]}', "^ is invalid", "constraints.properties[0]"),
        ('{"hostlist": "n0"}', "hostlist value must be a sequence", "constraints.hostlist"),
        ('{"hostlist": [[]]}', "not a hostlist", "constraints.hostlist[0]"),
        ('{"hostlist": [null]}', "not a hostlist", "constraints.hostlist[0]"),
        ('{"hostlist": ["a", "n["]}', "bad hostlist: unbalanced brackets", "constraints.hostlist[1]"),
        ('{"ranks": [{}]}', "not an idset", "constraints.ranks[0]"),
        ('{"ranks": ["3-1"]}', "bad idset: descending range", "constraints.ranks[0]"),
        ('{"ranks": [-1]}', "bad idset: not an id", "constraints.ranks[0]"),
        ('{"not": ["a"]}', "constraint is not a mapping", "constraints.not[0]"),
        ('{"or": [{"nope": []}]}', "unknown constraint operator: nope", "constraints.or[0]"),
    ],
)
def test_what_is_no_constraint_is_refused(text: str, summary: str, where: str) -> None:
    error = refusal(text)
    assert (error.summary, error.where) == (summary, where)


@pytest.mark.parametrize("character", list("!&'\"^`|()"))
def test_a_property_has_no_operator_characters(character: str) -> None:
    name = f"a{character}b"
    assert refusal(json.dumps({"properties": [name]})).summary == f"{name} is invalid"


def test_the_caller_names_the_place() -> None:
    with pytest.raises(BadConstraint) as caught:
        parse_constraint(parse_document('{"and": [{"x": []}]}'), "attributes.system.constraints")
    assert caught.value.where == "attributes.system.constraints.and[0]"


def test_deep_constraints_are_refused_with_their_bound() -> None:
    assert parse('{"and": [' * 31 + "{}" + "]}" * 31)
    assert refusal('{"and": [' * 32 + "{}" + "]}" * 32).expected == "a depth of at most 32"


def test_hosts_and_ranks_are_counted_over_the_whole_constraint() -> None:
    tracemalloc.start()
    try:
        hosts = '{"hostlist": ["n[0-39999]"]}'
        assert refusal(f'{{"or": [{hosts}, {hosts}]}}').summary == "bad hostlist: too many hosts"
        ranks = '{"ranks": ["0-599999"]}'
        assert refusal(f'{{"or": [{ranks}, {ranks}]}}').summary == "bad idset: too many ids"
        assert refusal('{"ranks": ["0-4294967294"]}').summary == "bad idset: too many ids"
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()


def test_a_long_name_does_not_make_a_long_message() -> None:
    assert len(str(refusal(json.dumps({"properties": ["(" * 10_000]})))) < 1000
    assert len(str(refusal(json.dumps({"x" * 10_000: []})))) < 1000


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Properties(()), True),
        (Properties(("a",)), True),
        (Properties(("a", "empty")), True),
        (Properties(("a", "b")), False),
        (Properties(("^b",)), True),
        (Properties(("^a",)), False),
        (Properties(("a", "^b", "^c")), True),
        (Hostlist(frozenset(["n0", "n1"])), True),
        (Hostlist(frozenset(["n1"])), False),
        (Hostlist(frozenset()), False),
        (HostIn(frozenset(["n0"])), True),
        (HostIn(frozenset(["n1"])), False),
        (Ranks(frozenset([0, 4])), True),
        (Ranks(frozenset([4])), False),
        (And(()), True),
        (And((ALL, ALL)), True),
        (And((ALL, NONE)), False),
        (Or(()), True),
        (Or((NONE, ALL)), True),
        (Or((NONE, NONE)), False),
        (Not(()), False),
        (Not((ALL,)), False),
        (Not((NONE,)), True),
        (Not((ALL, NONE)), True),
        (Not((ALL, ALL)), False),
        (Not((Not((ALL,)),)), True),
    ],
)
def test_a_constraint_matches_a_node(constraint: Constraint, expected: bool) -> None:
    assert matches(constraint, Node(properties={"a": "5", "empty": ""})) is expected


@pytest.mark.parametrize(
    ("operator", "values", "absent", "five", "text"),
    [
        (ValueOperator.IN, ("5", "6"), False, True, False),
        (ValueOperator.IN, (), False, False, False),
        (ValueOperator.NOT_IN, ("5", "6"), True, False, True),
        (ValueOperator.NOT_IN, ("v5",), True, True, False),
        (ValueOperator.EXISTS, (), False, True, True),
        (ValueOperator.DOES_NOT_EXIST, (), True, False, False),
        (ValueOperator.GT, ("4",), False, True, False),
        (ValueOperator.GT, ("5",), False, False, False),
        (ValueOperator.GT, ("-10",), False, True, False),
        (ValueOperator.LT, ("6",), False, True, False),
        (ValueOperator.LT, ("5",), False, False, False),
        (ValueOperator.LT, ("six",), False, False, False),
        (ValueOperator.LT, ("9.5",), False, False, False),
        (ValueOperator.LT, ("0" * 40 + "6",), False, True, False),
        (ValueOperator.LT, ("9223372036854775807",), False, True, False),
        (ValueOperator.GT, ("-9223372036854775808",), False, True, False),
        (ValueOperator.GT, ("-9223372036854775809",), False, False, False),
        (ValueOperator.GT, (), False, False, False),
        (ValueOperator.GT, ("1", "2"), False, False, False),
        (ValueOperator.LT, ("9223372036854775808",), False, False, False),
        (ValueOperator.LT, ("9" * 5000,), False, False, False),
    ],
)
def test_a_value_is_tested_as_kubernetes_does(
    operator: ValueOperator, values: tuple[str, ...], absent: bool, five: bool, text: bool
) -> None:
    test = Value("key", operator, values)
    assert matches(test, Node()) is absent
    assert matches(test, Node(properties={"key": "5"})) is five
    assert matches(test, Node(properties={"key": "v5"})) is text


@pytest.mark.parametrize("held", ["", " 5", "5 ", "5_0", "0x5", "5.0", "٥", "9223372036854775808"])
def test_what_is_no_integer_is_neither_greater_nor_less(held: str) -> None:
    node = Node(properties={"key": held})
    assert not matches(Value("key", ValueOperator.GT, ("0",)), node)
    assert not matches(Value("key", ValueOperator.LT, ("9",)), node)


def test_constraints_are_hashable() -> None:
    text = '{"and": [{"hostlist": ["a"]}, {"ranks": ["1"]}, {"not": [{"properties": ["x"]}]}]}'
    assert len({parse(text), parse(text)}) == 1


EQUAL, EXISTS = TolerationOperator.EQUAL, TolerationOperator.EXISTS
GPU = Taint("gpu", "a100", "NoSchedule")
GONE = Taint("gone", "", "NoExecute")
SLOW = Taint("slow", "", "PreferNoSchedule")


@pytest.mark.parametrize(
    ("taints", "tolerations", "expected"),
    [
        ((), (), True),
        ((GPU,), (), False),
        ((GONE,), (), False),
        ((SLOW,), (), True),
        ((Taint("x", "", "Whatever"),), (), True),
        ((GPU,), (Toleration("gpu", EQUAL, "a100", "NoSchedule"),), True),
        ((GPU,), (Toleration("gpu", EQUAL, "a100"),), True),
        ((GPU,), (Toleration("gpu", EQUAL, "h100"),), False),
        ((GPU,), (Toleration("gpu", EQUAL),), False),
        ((GPU,), (Toleration("cpu", EQUAL, "a100"),), False),
        ((GPU,), (Toleration("gpu", EQUAL, "a100", "NoExecute"),), False),
        ((GPU,), (Toleration("gpu", EXISTS),), True),
        ((GPU,), (Toleration("gpu", EXISTS, "", "NoSchedule"),), True),
        ((GPU,), (Toleration("gpu", EXISTS, "", "NoExecute"),), False),
        ((GPU,), (Toleration("", EXISTS),), True),
        ((GPU,), (Toleration("", EXISTS, "", "NoExecute"),), False),
        ((GPU,), (Toleration("", EQUAL, "a100"),), False),
        ((GONE,), (Toleration("gone", EQUAL),), True),
        ((GPU, GONE, SLOW), (Toleration("gpu", EXISTS),), False),
        ((GPU, GONE, SLOW), (Toleration("gpu", EXISTS), Toleration("gone", EXISTS)), True),
        ((GPU, GONE, SLOW), (Toleration("", EXISTS),), True),
    ],
)
def test_each_taint_that_forbids_must_be_tolerated(
    taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], expected: bool
) -> None:
    node = Node(properties={"gpu": "", **({TAINTS_PROPERTY: encode_taints(taints)} if taints else {})})
    assert matches(Tolerates(tolerations), node) is expected
    assert matches(Not((Tolerates(tolerations),)), node) is not expected


def test_taints_have_one_readable_text() -> None:
    assert (
        encode_taints([GPU, GONE, GPU]) == encode_taints([GONE, GPU]) == "gone=:NoExecute,gpu=a100:NoSchedule"
    )
    assert encode_taints([]) == ""
    assert decode_taints("") == ()


taint = st.builds(Taint, *(st.text(st.sampled_from("ab=:,%3A/.ä\n "), max_size=6) for _ in range(3)))


@settings(max_examples=100, deadline=None)
@given(st.sets(taint, min_size=1, max_size=4))
def test_taints_of_any_characters_come_back(taints: set[Taint]) -> None:
    decoded = decode_taints(encode_taints(taints))
    assert len(decoded) == len(taints)
    assert set(decoded) == taints

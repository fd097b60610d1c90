from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.model.constraint import BadConstraint, Properties
from penstock.model.document import BadDocument, Mapping
from penstock.model.jobspec import UINT_MAX, BadJobspec, Count, Jobspec, Resource, Task, parse_jobspec

CORE = {"type": "core", "count": 1}
SLOT = {"type": "slot", "count": 1, "label": "task", "with": [CORE]}
TASK = {"command": ["app"], "slot": "task", "count": {"per_slot": 1}}

YAML = """\
version: 9999
resources:
  - type: node
    count: {min: 2, max: 8, operator: "*", operand: 2}
    exclusive: true
    unit: piece
    with:
      - type: slot
        count: 1
        label: default
        with:
          - {type: core, count: {min: 4}, id: 0-3}
          - {type: gpu, count: 1, exclusive: false, with: []}
tasks:
  - command: [app, --flag, '5']
    slot: default
    count: {total: 5}
    distribution: block
    attributes: {a: 1}
attributes:
  user: {anything: [1, 2]}
  system:
    duration: 3600.5
    queue: batch
    cwd: /home/me
    environment: {PATH: /bin, LEVEL: 5, EMPTY: ''}
    constraints: {properties: ["fast"]}
    job: {name: x}
"""


def a_jobspec(**sections: object) -> str:
    """A small valid jobspec; an argument replaces a section."""
    keys: dict[str, object] = {"version": 1, "resources": [SLOT], "tasks": [TASK], "attributes": None}
    return json.dumps(keys | sections)


def a_resource(**keys: object) -> str:
    """A jobspec with one core; an argument replaces a key of it, None removes it."""
    resource = {key: value for key, value in (CORE | keys).items() if value is not None}
    return a_jobspec(resources=[resource])


def a_count(count: object) -> str:
    return a_resource(count=count)


def a_task(**keys: object) -> str:
    return a_jobspec(tasks=[{key: value for key, value in (TASK | keys).items() if value is not None}])


def a_system(**keys: object) -> str:
    return a_jobspec(attributes={"system": keys})


def refusal(text: str | bytes) -> BadRequest:
    with pytest.raises((BadJobspec, BadConstraint)) as caught:
        parse_jobspec(text)
    assert caught.value.where
    assert caught.value.found
    assert caught.value.expected
    return caught.value


def count_of(text: str) -> Count:
    return parse_jobspec(text).resources[0].count


def test_a_jobspec_is_read() -> None:
    spec = parse_jobspec(YAML)
    cores = Resource("core", Count(4, UINT_MAX), id="0-3")
    gpu = Resource("gpu", Count(1, 1), exclusive=False)
    slot = Resource("slot", Count(1, 1), label="default", with_=(cores, gpu))
    assert spec.version == 9999
    assert spec.resources == (
        Resource("node", Count(2, 8, "*", 2), unit="piece", exclusive=True, with_=(slot,)),
    )
    assert spec.tasks == (Task(("app", "--flag", "5"), "default", (("total", "5"),), "block", (("a", "1"),)),)
    assert spec.duration_s == 3600.5
    assert (spec.queue, spec.cwd) == ("batch", "/home/me")
    assert spec.environment == (("PATH", "/bin"), ("LEVEL", "5"), ("EMPTY", ""))
    assert spec.constraint == Properties(("fast",))
    assert isinstance(spec.attributes, Mapping)
    assert spec.attributes.keys() == ("user", "system")


def test_json_and_bytes_are_read_alike() -> None:
    text = a_jobspec()
    expected = Jobspec(
        version=1,
        resources=(Resource("slot", Count(1, 1), label="task", with_=(Resource("core", Count(1, 1)),)),),
        tasks=(Task(("app",), "task", (("per_slot", "1"),)),),
    )
    assert parse_jobspec(text) == parse_jobspec(text.encode()) == expected


def test_a_small_text_is_parsed_once() -> None:
    assert parse_jobspec(a_jobspec()) is parse_jobspec(a_jobspec())


def test_a_large_text_is_not_kept() -> None:
    text = a_system(environment={"A": "x" * 20_000})
    assert parse_jobspec(text) is not parse_jobspec(text)
    assert parse_jobspec(text) == parse_jobspec(text)


def test_a_jobspec_is_hashable() -> None:
    assert hash(parse_jobspec(YAML)) == hash(parse_jobspec(YAML.encode()))


def test_what_is_missing_has_a_default() -> None:
    spec = parse_jobspec(a_jobspec(attributes={"system": {}}))
    assert (spec.duration_s, spec.queue, spec.cwd, spec.environment, spec.constraint) == (
        0.0,
        "",
        "",
        (),
        None,
    )
    assert parse_jobspec(a_jobspec(attributes={})).duration_s == 0.0
    assert parse_jobspec(a_jobspec(attributes=None)).attributes is None


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("", "Top level of jobspec is not a mapping"),
        ("[]", "Top level of jobspec is not a mapping"),
        ("text", "Top level of jobspec is not a mapping"),
        ("{}", 'Missing key "version" in top level mapping'),
        ("version: 1", 'Missing key "resource" in top level mapping'),
        ("{version: 1, resources: []}", 'Missing key "tasks" in top level mapping'),
        ("{version: 1, resources: [], tasks: []}", 'Missing key "attributes" in top level mapping'),
        (a_jobspec(extra=1), "Top mapping in jobspec must have exactly four entries"),
        (a_jobspec(version=[1]), '"version" must be an unsigned integer'),
        (a_jobspec(version={"foo": 1}), '"version" must be an unsigned integer'),
        (a_jobspec(version=None), '"version" must be an unsigned integer'),
        (a_jobspec(version="one"), '"version" must be an unsigned integer'),
        (a_jobspec(version=-1), '"version" must be an unsigned integer'),
        (a_jobspec(version=1.0), '"version" must be an unsigned integer'),
        (a_jobspec(version=0), 'Only jobspec "version" 1-9999 is supported'),
        (a_jobspec(version=10000), 'Only jobspec "version" 1-9999 is supported'),
        (a_jobspec(attributes=[]), '"attributes" is not a map'),
        (a_jobspec(attributes="x"), '"attributes" is not a map'),
        (a_jobspec(attributes={"user": None, "foo": 1}), 'Unknown key in "attributes"'),
        (a_jobspec(attributes={"system": None}), '"system" in "attributes" is not a map'),
        (a_jobspec(attributes={"system": []}), '"system" in "attributes" is not a map'),
        (a_system(queue=["a"]), 'Value of "queue" must be a scalar'),
        (a_system(queue=None), 'Value of "queue" must be a scalar'),
        (a_system(cwd={}), 'Value of "cwd" must be a scalar'),
        (a_system(environment=[]), '"environment" is not a map'),
        (a_system(environment={"A": []}), 'Value in "environment" must be a scalar'),
        (a_system(constraints=[]), "constraint is not a mapping"),
        (a_system(constraints={"nope": []}), "unknown constraint operator: nope"),
        (a_system(constraints={"properties": ["ar^m-v9@core"]}), "ar^m-v9@core is invalid"),
        (a_jobspec(resources={}), '"resources" is not a sequence'),
        (a_jobspec(resources=None), '"resources" is not a sequence'),
        (a_jobspec(resources=["core"]), "resource is not a mapping"),
        (a_resource(type=None), 'Key "type" missing from resource'),
        (a_resource(type=["core"]), 'Value of "type" must be a scalar'),
        (a_resource(type=""), 'Value of "type" must not be empty'),
        (a_resource(count=None), 'Key "count" missing from resource'),
        (a_resource(unit=[]), 'Value of "unit" must be a scalar'),
        (a_resource(exclusive=[]), 'Value of "exclusive" must be a scalar'),
        (a_resource(exclusive="yes"), 'Value of "exclusive" must be either "true" or "false"'),
        (a_resource(exclusive=1), 'Value of "exclusive" must be either "true" or "false"'),
        (a_resource(label=[]), 'Value of "label" must be a scalar'),
        (a_resource(type="slot"), "All slots must be labeled"),
        (a_resource(type="slot", label=""), "All slots must be labeled"),
        (a_resource(id={}), 'Value of "id" must be a scalar'),
        (a_resource(foo=1), "Unrecognized key in resource mapping"),
        (a_resource(**{"with": "x"}), '"resources" is not a sequence'),
        (a_resource(**{"with": [1]}), "resource is not a mapping"),
        (a_count("x"), 'Value of "count" must be an unsigned integer'),
        (a_count(-1), 'Value of "count" must be an unsigned integer'),
        (a_count(1.5), 'Value of "count" must be an unsigned integer'),
        (a_count("0x10"), 'Value of "count" must be an unsigned integer'),
        (a_count("010"), 'Value of "count" must be an unsigned integer'),
        (a_count(2**32), 'Value of "count" must be an unsigned integer'),
        (a_count("1" * 5000), 'Value of "count" must be an unsigned integer'),
        (a_count([1, 2]), "count is not a mapping"),
        (a_count({}), 'Key "min" missing from count'),
        (a_count({"max": 1}), 'Key "min" missing from count'),
        (a_count({"min": [1]}), 'Value of "min" must be a scalar'),
        (a_count({"min": "x"}), 'Value of "min" must be an unsigned integer'),
        (a_count({"min": 0}), '"min" must be greater than zero'),
        (a_count({"min": 1, "foo": 2}), "Unrecognized key in count mapping"),
        (
            a_count({"min": 1, "max": 2}),
            'All or none of "max", "operator", and "operand" must be specified',
        ),
        (
            a_count({"min": 1, "operator": "+", "operand": 1}),
            'All or none of "max", "operator", and "operand" must be specified',
        ),
        (
            a_count({"min": 1, "max": 2, "operator": "+"}),
            'All or none of "max", "operator", and "operand" must be specified',
        ),
    ],
)
def test_what_is_no_jobspec_is_refused(text: str, summary: str) -> None:
    assert refusal(text).summary == summary


@pytest.mark.parametrize(
    ("key", "value", "summary"),
    [
        ("max", [1], 'Value of "max" must be a scalar'),
        ("operator", [1], 'Value of "operator" must be a scalar'),
        ("operand", {}, 'Value of "operand" must be a scalar'),
        ("max", -3, 'Value of "max" must be an unsigned integer'),
        ("operand", "x", 'Value of "operand" must be an unsigned integer'),
        ("min", 0, '"min" must be greater than zero'),
        ("max", 1, '"max" must be greater than or equal to "min"'),
        ("operator", "-", "Invalid count operator"),
        ("operator", "", "Invalid count operator"),
        ("operator", "++", "Invalid count operator"),
        ("extra", 1, "Unrecognized key in count mapping"),
    ],
)
def test_a_bad_range_is_refused(key: str, value: object, summary: str) -> None:
    count: dict[str, object] = {"min": 2, "max": 8, "operator": "+", "operand": 1}
    assert refusal(a_count(count | {key: value})).summary == summary


@pytest.mark.parametrize(
    ("operator", "least", "operand", "summary"),
    [
        ("+", 1, 0, "\"operand\" must be greater than zero for addition '+'"),
        ("*", 1, 1, "\"operand\" must be greater than one for multiplication '*'"),
        ("^", 2, 1, "\"operand\" must be greater than one for exponentiation '^'"),
        ("^", 1, 2, "\"min\" must be greater than one for exponentiation '^'"),
    ],
)
def test_an_operator_that_goes_nowhere_is_refused(
    operator: str, least: int, operand: int, summary: str
) -> None:
    count = {"min": least, "max": 8, "operator": operator, "operand": operand}
    assert refusal(a_count(count)).summary == summary


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (a_jobspec(tasks={}), '"tasks" is not a sequence'),
        (a_jobspec(tasks=None), '"tasks" is not a sequence'),
        (a_jobspec(tasks=["app"]), "task is not a mapping"),
        (a_task(command=None), 'Key "command" missing from task'),
        (a_task(command="app"), '"command" value must be a sequence'),
        (a_task(command=[["app"]]), '"command" value must be a sequence of scalars'),
        (a_task(command=["app", None]), '"command" value must be a sequence of scalars'),
        (a_task(slot=None), 'Key "slot" missing from task'),
        (a_task(slot=["task"]), 'Value of task "slot" must be a YAML scalar'),
        (a_task(count=1), '"count" in task is not a mapping'),
        (a_task(count={}), '"count" in task must have exactly one entry'),
        (a_task(count={"per_slot": 1, "total": 2}), '"count" in task must have exactly one entry'),
        (a_task(count={"per_slot": [1]}), 'Value in task "count" must be a scalar'),
        (a_task(distribution=[]), 'Value of "distribution" must be a scalar'),
        (a_task(attributes=[]), '"attributes" in task is not a mapping'),
        (a_task(attributes={"a": {}}), 'Value in task "attributes" must be a scalar'),
        (a_task(count=None), "impossible number of entries in task mapping"),
        (
            a_task(distribution="x", attributes={}, more=1),
            "impossible number of entries in task mapping",
        ),
    ],
)
def test_a_bad_task_is_refused(text: str, summary: str) -> None:
    assert refusal(text).summary == summary


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("600", 600.0), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("'60'", 60.0)],
)
def test_a_duration_is_a_number_of_seconds(value: str, seconds: float) -> None:
    text = f"{{version: 1, resources: [], tasks: [], attributes: {{system: {{duration: {value}}}}}}}"
    assert parse_jobspec(text).duration_s == seconds


@pytest.mark.parametrize(
    "value",
    ["-1", "-0.5", ".inf", "inf", ".nan", "nan", "1h", "x", "''", "~", "[]", "{}", "1e999", "0x10", "1" * 65],
)
def test_a_duration_that_is_no_finite_number_is_refused(value: str) -> None:
    text = f"{{version: 1, resources: [], tasks: [], attributes: {{system: {{duration: {value}}}}}}}"
    error = refusal(text)
    assert error.summary == 'Value of "duration" must be a finite number that is not negative'
    assert error.where == "attributes.system.duration (line 1)"


def test_sections_are_checked_in_order() -> None:
    broken = a_jobspec(version=0, attributes=[], resources={}, tasks={})
    assert "version" in refusal(broken).where
    broken = a_jobspec(attributes=[], resources={}, tasks={})
    assert refusal(broken).where == "attributes"
    assert refusal(a_jobspec(resources={}, tasks={})).where == "resources"


def test_the_place_is_a_path_with_its_line() -> None:
    error = refusal(YAML.replace("{min: 4}", "{min: x}"))
    assert error.where == "resources[0].with[0].with[0].count.min (line 12)"
    assert error.found == "x"
    assert error.expected == "a decimal number from 0 to 4294967295"


def test_a_path_of_json_has_no_line() -> None:
    error = refusal(a_jobspec(resources=[SLOT, SLOT | {"with": [CORE, {"count": 1}]}]))
    assert error.where == "resources[1].with[1]"


@pytest.mark.parametrize(
    "text", ["a: [", "{", "a: b: c", b"\xff", "--- 1\n--- 2\n", "version: 1\nversion: 1\n"]
)
def test_bad_text_stays_a_bad_document(text: str | bytes) -> None:
    with pytest.raises(BadDocument):
        parse_jobspec(text)


def nested(levels: int) -> str:
    resource: dict[str, object] = dict(CORE)
    for _ in range(levels - 1):
        resource = {"type": "rack", "count": 1, "with": [resource]}
    return a_jobspec(resources=[resource])


def test_a_tree_of_32_levels_passes_and_a_deeper_one_is_refused() -> None:
    assert parse_jobspec(nested(32))
    error = refusal(nested(33))
    assert (error.summary, error.expected) == ("resources are nested too deeply", "a depth of at most 32")


def test_ten_thousand_resources_pass_and_more_are_refused() -> None:
    wide = "version: 1\nresources:\n{}tasks: []\nattributes:\n"
    one = "- {type: a, count: 1}\n"
    assert len(parse_jobspec(wide.format(one * 10_000)).resources) == 10_000
    error = refusal(wide.format(one * 9_999 + "- {type: a, count: 1, with: [{type: b, count: 1}]}\n"))
    assert (error.summary, error.expected) == ("too many resources", "at most 10000 in a jobspec")


def test_aliases_cannot_multiply_resources() -> None:
    lines = ["version: 1", "resources:", "- &a0 {type: a, count: 1}"]
    lines += [f"- &a{i} {{type: a, count: 1, with: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 20)]
    with pytest.raises(BadDocument, match="too many nodes"):
        parse_jobspec("\n".join([*lines, "tasks: []", "attributes:", ""]))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (4, Count(4, 4)),
        (0, Count(0, 0)),
        ("4", Count(4, 4)),
        (UINT_MAX, Count(UINT_MAX, UINT_MAX)),
        ({"min": 3}, Count(3, UINT_MAX, "+", 1)),
        ({"min": 1, "max": 9, "operator": "+", "operand": 2}, Count(1, 9, "+", 2)),
        ({"min": 1, "max": 9, "operator": "*", "operand": 2}, Count(1, 9, "*", 2)),
        ({"min": 2, "max": 9, "operator": "^", "operand": 2}, Count(2, 9, "^", 2)),
        ({"min": 9, "max": 9, "operator": "+", "operand": 1}, Count(9, 9)),
    ],
)
def test_a_count_is_read(count: object, expected: Count) -> None:
    assert count_of(a_count(count)) == expected


@pytest.mark.parametrize(
    ("count", "available", "picked"),
    [
        (Count(4, 4), 10, 4),
        (Count(4, 4), 3, 0),
        (Count(0, 0), 10, 0),
        (Count(5, 4), 10, 0),
        (Count(2, UINT_MAX), 12, 12),
        (Count(1, 10, "+", 4), 100, 9),
        (Count(1, 10, "+", 4), 8, 5),
        (Count(3, 100, "*", 2), 50, 48),
        (Count(2, 300, "^", 2), 1000, 256),
        (Count(2, 300, "^", 2), 255, 16),
        (Count(2, UINT_MAX, "^", UINT_MAX), UINT_MAX, 2),
        (Count(3, 100, "^", 3), 100, 27),
        (Count(2, 9), -1, 0),
        (Count(2, 9, "+", 0), 9, 9),
        (Count(2, 9, "*", 1), 9, 2),
        (Count(0, 9, "*", 2), 9, 0),
        (Count(1, 9, "^", 2), 9, 1),
    ],
)
def test_the_largest_feasible_count_is_picked(count: Count, available: int, picked: int) -> None:
    assert count.pick(available) == picked


def feasible(count: Count) -> Iterator[int]:
    current = count.min
    while current <= count.max:
        yield current
        match count.operator:
            case "+":
                current += count.operand
            case "*":
                current *= count.operand
            case _:
                current **= count.operand


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 60), st.integers(0, 500), st.sampled_from("+*^"), st.integers(2, 9), st.integers(-1, 600)
)
def test_picking_agrees_with_trying_them_all(
    least: int, more: int, operator: str, operand: int, available: int
) -> None:
    count = Count(least, least + more, operator, operand)
    best = max((value for value in feasible(count) if value <= available), default=0)
    assert count.pick(available) == best


def test_every_error_reads_as_one_line() -> None:
    text = str(refusal(a_resource(**{"fo\no": 1})))
    assert re.fullmatch(r"resources\[0\]\.'fo\\no': Unrecognized key in resource mapping \(.*\)", text)

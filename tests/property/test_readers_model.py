"""Whatever a reader of `penstock.model` is given, it answers with a value or with `BadRequest`.

Text comes from four places: anything at all, bytes at all, pieces of the grammar in random order,
and valid inputs with a few random edits, which get past the first checks. What could explode is
held to a bound of memory; nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fuzzing import answers, bounded, edited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.model.constraint import parse_constraint
from penstock.model.document import parse_document, parse_json
from penstock.model.duration import parse_duration
from penstock.model.hostlist import parse_hostlist
from penstock.model.idset import parse_idset
from penstock.model.jobspec import parse_jobspec
from penstock.model.quantity import parse_quantity
from penstock.model.rset import parse_rset

MIB = 1 << 20


Read = Callable[[str], object]


def read_constraint(text: str | bytes) -> object:
    return parse_constraint(parse_document(text))


TEXT_READERS: dict[str, Read] = {
    "document": parse_document,
    "json": parse_json,
    "idset": parse_idset,
    "hostlist": parse_hostlist,
    "duration": parse_duration,
    "quantity": parse_quantity,
    "rset": parse_rset,
    "constraint": read_constraint,
    "jobspec": parse_jobspec,
}
BYTES_READERS: dict[str, Callable[[bytes], object]] = {
    "document": parse_document,
    "json": parse_json,
    "rset": parse_rset,
    "constraint": read_constraint,
    "jobspec": parse_jobspec,
}

JOBSPEC_YAML = """\
version: 9999
resources:
  - type: node
    count: {min: 2, max: 8, operator: "*", operand: 2}
    exclusive: true
    with:
      - &slot {type: slot, count: 1, label: default, with: [{type: core, count: {min: 4}}]}
      - *slot
tasks:
  - command: [app, '5']
    slot: default
    count: {total: 5}
attributes:
  system:
    duration: 3600.5
    environment: {A: "b"}
    constraints: {and: [{properties: ["fast", "^slow"]}, {not: [{hostlist: ["n[0-3]"]}]}]}
"""
JOBSPEC_JSON = (
    '{"version": 1, "resources": [{"type": "slot", "count": 4, "label": "task", "with": [{"type": "core", '
    '"count": 2}]}], "tasks": [{"command": ["app"], "slot": "task", "count": {"per_slot": 1}}], '
    '"attributes": {"system": {"duration": 600.0, "constraints": {"ranks": ["0-3,7"]}}}}'
)
RSET = (
    '{"version": 1, "execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0-7", "gpu": "0-1"}}, '
    '{"rank": "7", "children": {}}], "nodelist": ["a,b[2-4]", "c"], "properties": {"gpu": "0-1"}, '
    '"nslots": 4, "starttime": 0, "expiration": 0.5}}'
)
CONSTRAINT = (
    '{"and": [{"or": [{"hostlist": ["n[0-3],x"]}, {"ranks": ["1-5"]}]}, {"not": [{"properties": ["^a"]}]}]}'
)
VALID: dict[str, list[str]] = {
    "document": [
        JOBSPEC_YAML,
        JOBSPEC_JSON,
        "? a\n: &x |\n  b\n*x : >-\n  c\n",
        "%YAML 1.1\n--- !t 'x'\n...\n",
    ],
    "json": [RSET, '[1, -2.5e3, true, null, "\\u00e9", {}, []]'],
    "idset": ["[0-3,5,7-9]", "1,7-9,16"],
    "hostlist": ["login,node[000-015,20]-eth0,x", "a[1,1,2,1]"],
    "duration": ["1.5h", "100ms", "inf", "2e3s"],
    "quantity": ["1.5Gi", "500m", "-2e3", "1E"],
    "rset": [RSET],
    "constraint": [CONSTRAINT],
    "jobspec": [JOBSPEC_YAML, JOBSPEC_JSON],
}

SIGNS = "{ } [ ] , : - &a *a ' \" | > ? # % !! ~ --- ... << \\ \\u . ^ e Ki"
VALUES = "0 -1 00 1e999 NaN -Infinity inf true null 4294967295 99999999999999999999999"
WORDS = "version resources with count min max rank R_lite and not properties ranks"
BLANKS = [": ", "- ", "? ", "\n", "\n  ", "\n---\n", "\t", "\r"]
RARE = ["\x00", "\x85", "\ufeff", "\u2028", "\ud800", "\U0010ffff"]
PIECES = st.sampled_from([*SIGNS.split(), *VALUES.split(), *WORDS.split(), *BLANKS, *RARE])
MESS = st.text(max_size=60) | st.lists(PIECES, max_size=40).map("".join)
EDIT = st.tuples(st.integers(0, 1000), st.integers(0, 12), PIECES | st.text(max_size=4) | st.just(""))

FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", TEXT_READERS)
@FUZZ
@given(text=MESS)
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    answers(TEXT_READERS[name], text)


@pytest.mark.parametrize("name", BYTES_READERS)
@FUZZ
@given(text=st.binary(max_size=60) | MESS.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused(name: str, text: bytes) -> None:
    answers(BYTES_READERS[name], text)


@pytest.mark.parametrize("name", VALID)
def test_the_inputs_to_edit_are_valid(name: str) -> None:
    for text in VALID[name]:
        TEXT_READERS[name](text)


@pytest.mark.parametrize("name", VALID)
@FUZZ
@given(data=st.data(), edits=st.lists(EDIT, min_size=1, max_size=4))
def test_an_edited_input_is_read_or_refused(
    name: str, data: st.DataObject, edits: list[tuple[int, int, str]]
) -> None:
    answers(TEXT_READERS[name], edited(data.draw(st.sampled_from(VALID[name])), edits))


@pytest.mark.parametrize("name", BYTES_READERS)
@FUZZ
@given(data=st.data(), place=st.integers(0, 1000), value=st.integers(0, 255))
def test_an_input_with_a_wrong_byte_is_read_or_refused(
    name: str, data: st.DataObject, place: int, value: int
) -> None:
    text = bytearray(data.draw(st.sampled_from(VALID[name])).encode())
    text[place % len(text)] = value
    answers(BYTES_READERS[name], bytes(text))


@pytest.mark.parametrize("name", ["document", "json", "rset", "constraint", "jobspec"])
@pytest.mark.parametrize(
    "text",
    [
        "[" * 90_000,
        "[" * 40_000 + "]" * 40_000,
        '{"a":' * 40_000 + "1" + "}" * 40_000,
        '{"and": [' * 20_000,
        '{"and": [' * 30 + "{}" + "]}" * 30,
        "- " * 100_000,
        "? " * 100_000,
        "".join(f"{' ' * depth}a:\n" for depth in range(400)),
        '{"version": 1, "resources": ' + '[{"type": "a", "count": 1, "with": ' * 900,
    ],
    ids=["open", "closed", "objects", "ands", "few ands", "dashes", "marks", "block", "resources"],
)
def test_depth_is_refused_in_bounded_memory(name: str, text: str) -> None:
    with bounded(32 * MIB):
        answers(TEXT_READERS[name], text)


def bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 x"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb(60, 2),
        bomb(30, 10),
        bomb(3, 5000),
        "a: &a {b: *a}",
        "&a [*a, *a]",
        "[" + "&a x, " + "*a, " * 110_000 + "]",
        "".join(f"%TAG !{i}! tag:{i}\n" for i in range(40_000)) + "--- x\n",
        "{" + ", ".join(f"k{i}" for i in range(20_000)) + "}",
        "\n".join(f"k{i}: &k{i} v" for i in range(20_000)),
        "[" + "0," * 500_000 + "0]",
        '["' + "\\u0041" * 170_000 + '"]',
        "[" + '\\",' * 150_000,
    ],
)
def test_a_bomb_is_defused_in_bounded_memory(text: str) -> None:
    with bounded(64 * MIB):
        answers(parse_jobspec, text)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_idset, "0-4294967294"),
        (parse_idset, "0-1048575,1048577"),
        (parse_idset, "9" * MIB),
        (parse_hostlist, "n[0-999999999]"),
        (parse_hostlist, "n[0-999999999999999999]" * 2),
        (parse_hostlist, "n[" + "0-65535," * 1000 + "1]"),
        (parse_hostlist, "x" * MIB + "[0-65535]"),
        (parse_hostlist, "[" * MIB),
        (parse_duration, "9" * MIB),
        (parse_duration, "1e" + "9" * MIB),
        (parse_quantity, "1e" + "9" * MIB),
        (parse_quantity, "1e999"),
        (parse_quantity, "9" * MIB),
        (parse_rset, RSET.replace("0-3", "0-4294967294")),
        (parse_rset, RSET.replace("0-7", "0-4294967294")),
        (parse_rset, RSET.replace("0-3", "8-99999").replace("0-7", "0-999999")),
        (parse_rset, RSET.replace("b[2-4]", "b[2-4000000000]")),
        (parse_rset, RSET.replace('"nslots": 4', '"nslots": ' + "9" * 100_000)),
        (parse_rset, RSET.replace("0.5", "9" * 100_000)),
        (read_constraint, CONSTRAINT.replace("n[0-3]", "n[0-3000000000]")),
        (read_constraint, CONSTRAINT.replace("1-5", "1-4000000000")),
        (parse_jobspec, JOBSPEC_JSON.replace("600.0", "9" * 100_000)),
        (parse_jobspec, JOBSPEC_JSON.replace('"count": 4', '"count": ' + "9" * 100_000)),
        (parse_jobspec, JOBSPEC_YAML.replace("max: 8", "max: 4294967296")),
    ],
)
def test_a_huge_number_is_refused_in_bounded_memory(read: Read, text: str) -> None:
    with bounded(64 * MIB), pytest.raises(BadRequest):
        read(text)

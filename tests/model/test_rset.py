from __future__ import annotations

import itertools
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.document import BadDocument
from penstock.model.rset import BadResourceSet, RankGroup, ResourceSet, encode_rset, parse_rset, rank_hosts

LINE = (
    '{"version": 1, "execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0-7", "gpu": "0-1"}}], '
    '"nodelist": ["kind-worker,kind-worker[2-4]"], "properties": {"gpu": "0-1"}, "nslots": 4, '
    '"starttime": 0, "expiration": 0.5}}'
)


def an_r(**execution: object) -> str:
    """R with two ranks; an argument replaces a key, None removes it."""
    keys: dict[str, object] = {
        "R_lite": [{"rank": "0-1", "children": {"core": "0-3"}}],
        "nodelist": ["node[0-1]"],
        "starttime": 0.0,
        "expiration": 0.0,
    }
    keys.update(execution)
    return json.dumps(
        {"version": 1, "execution": {key: value for key, value in keys.items() if value is not None}}
    )


def refusal(text: str | bytes) -> BadResourceSet:
    with pytest.raises(BadResourceSet) as caught:
        parse_rset(text)
    assert caught.value.where
    assert caught.value.found
    assert caught.value.expected
    return caught.value


def test_r_is_read() -> None:
    cores, gpus = tuple(range(8)), (0, 1)
    assert parse_rset(LINE) == ResourceSet(
        groups=(RankGroup((0, 1, 2, 3), (("core", cores), ("gpu", gpus))),),
        nodelist=("kind-worker", "kind-worker2", "kind-worker3", "kind-worker4"),
        starttime=0.0,
        expiration=0.5,
        properties=(("gpu", (0, 1)),),
        nslots=4,
    )


def test_r_is_written_on_one_line_as_it_was() -> None:
    assert encode_rset(parse_rset(LINE)) == LINE


def test_an_r_without_nodelist_properties_and_slots_has_no_such_keys() -> None:
    text = an_r(nodelist=None, starttime=None, expiration=None)
    rset = parse_rset(text)
    assert (rset.nodelist, rset.properties, rset.nslots) == ((), (), None)
    assert encode_rset(rset) == (
        '{"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "0-3"}}], '
        '"starttime": 0, "expiration": 0}}'
    )


def test_an_empty_nodelist_is_a_missing_one() -> None:
    assert parse_rset(an_r(nodelist=[])).nodelist == ()
    assert parse_rset(an_r(nodelist=[""])).nodelist == ()


def test_an_empty_r_is_a_value() -> None:
    assert parse_rset(an_r(R_lite=[], nodelist=None)).groups == ()


def test_whole_times_are_written_as_integers() -> None:
    rset = parse_rset(an_r(starttime=1.7e9, expiration=1700000600.25))
    assert encode_rset(rset).endswith('"starttime": 1700000000, "expiration": 1700000600.25}}')


def test_groups_keep_their_order_and_hosts_follow_ascending_ranks() -> None:
    rset = parse_rset(
        an_r(
            R_lite=[{"rank": "4", "children": {"core": "0-1"}}, {"rank": "1,3", "children": {"core": "1"}}],
            nodelist=["a", "b[3-4]"],
        )
    )
    assert [group.ranks for group in rset.groups] == [(4,), (1, 3)]
    assert rank_hosts(rset) == {1: "a", 3: "b3", 4: "b4"}


def test_without_a_nodelist_no_rank_has_a_host() -> None:
    assert rank_hosts(parse_rset(an_r(nodelist=None))) == {}


def test_what_others_add_is_ignored() -> None:
    text = json.dumps(
        {
            "version": 1,
            "attributes": {"system": 1},
            "scheduling": {"graph": [None]},
            "execution": {"R_lite": [{"rank": "0", "children": {}, "x": 1}], "later": {}},
        }
    )
    assert parse_rset(text).groups == (RankGroup((0,), ()),)


@pytest.mark.parametrize(
    ("text", "summary", "where"),
    [
        ("[]", "R is not an object", "R"),
        ("1", "R is not an object", "R"),
        ("{}", "unsupported version of R", "version"),
        ('{"version": 2, "execution": {}}', "unsupported version of R", "version"),
        ('{"version": "1", "execution": {}}', "unsupported version of R", "version"),
        ('{"version": 1.0, "execution": {}}', "unsupported version of R", "version"),
        ('{"version": 1}', "execution is not an object", "execution"),
        ('{"version": 1, "execution": []}', "execution is not an object", "execution"),
        ('{"version": 1, "execution": {}}', "R_lite is not an array", "execution.R_lite"),
        (an_r(R_lite={}), "R_lite is not an array", "execution.R_lite"),
        (an_r(R_lite=["0"]), "R_lite entry is not an object", "execution.R_lite[0]"),
        (an_r(R_lite=[{"children": {}}]), "idset is not a string", "execution.R_lite[0].rank"),
        (an_r(R_lite=[{"rank": 0, "children": {}}]), "idset is not a string", "execution.R_lite[0].rank"),
        (an_r(R_lite=[{"rank": "-1", "children": {}}]), "bad idset: not an id", "execution.R_lite[0].rank"),
        (
            an_r(R_lite=[{"rank": "", "children": {}}]),
            "R_lite entry without ranks",
            "execution.R_lite[0].rank",
        ),
        (an_r(R_lite=[{"rank": "0"}]), "children is not an object", "execution.R_lite[0].children"),
        (
            an_r(R_lite=[{"rank": "0", "children": {"": "0"}}]),
            "resource type without a name",
            "execution.R_lite[0].children",
        ),
        (
            an_r(R_lite=[{"rank": "0", "children": {"core": "1,0"}}]),
            "bad idset: ids are not strictly ascending",
            "execution.R_lite[0].children.core",
        ),
        (
            an_r(R_lite=[{"rank": "0-2", "children": {}}, {"rank": "2-3", "children": {}}]),
            "rank occurs twice",
            "execution.R_lite[1].rank",
        ),
        (an_r(nodelist="node[0-1]"), "nodelist is not an array", "execution.nodelist"),
        (an_r(nodelist=[5]), "hostlist is not a string", "execution.nodelist[0]"),
        (an_r(nodelist=["a["]), "bad hostlist: unbalanced brackets", "execution.nodelist[0]"),
        (an_r(nodelist=["node0"]), "nodelist does not fit the ranks", "execution.nodelist"),
        (an_r(nodelist=["node[0-1]", "x"]), "bad hostlist: too many hosts", "execution.nodelist[1]"),
        (an_r(starttime="0"), "time is not a number", "execution.starttime"),
        (an_r(starttime=True), "time is not a number", "execution.starttime"),
        (an_r(expiration=[0]), "time is not a number", "execution.expiration"),
        (an_r(expiration=-1), "time out of range", "execution.expiration"),
        (an_r().replace("0.0}", "1e999}"), "time out of range", "execution.expiration"),
        (an_r().replace("0.0}", "null}"), "time is not a number", "execution.expiration"),
        (an_r().replace("0.0}", "1" * 65 + "}"), "time is not a number", "execution.expiration"),
        (an_r(nslots=-1), "count is not a whole number", "execution.nslots"),
        (an_r(nslots=1.5), "count is not a whole number", "execution.nslots"),
        (an_r(nslots="1"), "count is not a whole number", "execution.nslots"),
        (an_r(nslots=10**18), "count is not a whole number", "execution.nslots"),
        (an_r(properties=["x"]), "properties is not an object", "execution.properties"),
        (an_r(properties={"x": 0}), "idset is not a string", "execution.properties.x"),
        (an_r(properties={"": "0"}), "bad property name", "execution.properties."),
        (
            an_r(properties={"x": "1-2"}),
            "property of a rank that R does not have",
            "execution.properties.x",
        ),
    ],
)
def test_what_is_no_r_is_refused(text: str, summary: str, where: str) -> None:
    error = refusal(text)
    assert (error.summary, error.where) == (summary, where)


@pytest.mark.parametrize("character", list("!&'\"^`|()"))
def test_a_property_name_has_no_operator_characters(character: str) -> None:
    assert refusal(an_r(properties={f"a{character}b": "0"})).summary == "bad property name"


def test_other_characters_are_fine_in_a_property_name() -> None:
    rset = parse_rset(an_r(properties={"+local": "0", "arm-v9@core": "", "größe=1": "1"}))
    assert rset.properties == (("+local", (0,)), ("arm-v9@core", ()), ("größe=1", (1,)))
    assert parse_rset(encode_rset(rset)) == rset


@pytest.mark.parametrize("text", ["", "{", "version: 1", b"\xff", '{"version": 1, "version": 1}'])
def test_what_is_no_json_is_a_bad_document(text: str | bytes) -> None:
    with pytest.raises(BadDocument):
        parse_rset(text)


@pytest.mark.parametrize(
    "text",
    [
        an_r(R_lite=[{"rank": "0-4294967294", "children": {}}], nodelist=None),
        an_r(R_lite=[{"rank": "0-9999", "children": {"core": "0-9999"}}], nodelist=None),
        an_r(nodelist=["n[0-999999999]"]),
        an_r(properties={"x": "0-4294967294"}),
    ],
)
def test_a_few_bytes_cannot_ask_for_much_memory(text: str) -> None:
    tracemalloc.start()
    try:
        refusal(text)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_ids_are_counted_over_the_whole_set() -> None:
    children = {f"t{i}": f"{i}-{i + (1 << 18)}" for i in range(20)}
    error = refusal(an_r(R_lite=[{"rank": "0", "children": children}], nodelist=None))
    assert error.summary == "bad idset: too many ids"


IDS = st.sets(st.integers(0, 70), max_size=8).map(lambda ids: tuple(sorted(ids)))
TYPES = st.sampled_from(["core", "gpu", "memory", "größe"])


@st.composite
def resource_sets(draw: st.DrawFn) -> ResourceSet:
    ranks = draw(st.lists(st.integers(0, 50), unique=True, max_size=12))
    cuts = sorted(draw(st.sets(st.integers(1, max(len(ranks), 1)), max_size=4)) | {0, len(ranks)})
    groups = tuple(
        RankGroup(
            tuple(sorted(ranks[low:high])),
            tuple(draw(st.dictionaries(TYPES, IDS, max_size=3)).items()),
        )
        for low, high in itertools.pairwise(cuts)
        if ranks[low:high]
    )
    holders = st.sets(st.sampled_from(ranks)).map(lambda ids: tuple(sorted(ids))) if ranks else st.just(())
    return ResourceSet(
        groups=groups,
        nodelist=tuple(f"n{rank}" for rank in sorted(ranks)) if draw(st.booleans()) else (),
        starttime=draw(st.floats(0, 1e12)),
        expiration=draw(st.integers(0, 2**40).map(float)),
        properties=tuple(draw(st.dictionaries(TYPES, holders, max_size=2)).items()),
        nslots=draw(st.none() | st.integers(0, 10**6)),
    )


@settings(max_examples=100, deadline=None)
@given(resource_sets())
def test_what_is_written_is_read_back(rset: ResourceSet) -> None:
    assert parse_rset(encode_rset(rset)) == rset
    assert "\n" not in encode_rset(rset)

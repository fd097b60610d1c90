"""Fuzzes the readers: every input yields a value or `BadRequest`, and no other exception.

Inputs are arbitrary text, arbitrary bytes, or a valid document with a few random edits of its text or its
tree. An accepted graph must be usable: it is complete, an engine accepts it, and a match on it terminates.
Inputs that try to exhaust memory run under a memory limit. No test here measures time.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fuzzing import answers, bounded, edited
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine import Engine, Graph, MatchOp, cluster_of, parse_policy, slot_request
from penstock.errors import BadRequest
from penstock.fluxion.find import find, parse_expression
from penstock.fluxion.readers.grug import read_grug
from penstock.fluxion.readers.jgf import attach_jgf, claims_in_jgf, read_jgf
from penstock.fluxion.readers.rv1exec import claims_in_rset, ranks_in_rset, read_rv1exec

MIB = 1 << 20

Read = Callable[[str], object]
Tree = dict[str, object]


def entry(key: int, vertex_type: str, path: str, **fields: object) -> Tree:
    return {"id": str(key), "metadata": {"type": vertex_type, "paths": {"containment": path}, **fields}}


def document(*nodes: Tree, edges: list[tuple[int, int]]) -> Tree:
    links = [{"source": str(source), "target": str(target)} for source, target in edges]
    return {"graph": {"nodes": list(nodes), "edges": links}}


JGF_TREE = document(
    entry(0, "cluster", "/cluster0", id=0),
    entry(1, "rack", "/cluster0/rack0", id=0, properties={"row": "1"}),
    entry(2, "node", "/cluster0/rack0/node0", name="node0", rank=0, status=1),
    entry(3, "core", "/cluster0/rack0/node0/core0", id=0, rank=0, exclusive=True),
    entry(4, "memory", "/cluster0/rack0/node0/memory0", id=0, rank=0, size=8, unit="GB"),
    edges=[(0, 1), (1, 2), (2, 3), (2, 4)],
)
ATTACH_TREE = document(
    entry(0, "cluster", "/cluster0", id=0),
    entry(90, "node", "/cluster0/node9", id=9, rank=9),
    entry(91, "core", "/cluster0/node9/core0", id=0, rank=9),
    edges=[(0, 90), (90, 91)],
)
MARKS_TREE = document(
    entry(0, "cluster", "/cluster0", id=0),
    entry(1, "node", "/cluster0/node0", id=0, rank=0),
    entry(2, "core", "/cluster0/node0/core0", id=0, rank=0, exclusive=True),
    edges=[(0, 1), (1, 2)],
)
GRUG = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="root" for="node" attr.name="root" attr.type="int"><default>0</default></key>
<key id="type" for="node" attr.name="type" attr.type="string"/>
<key id="size" for="node" attr.name="size" attr.type="int"><default>1</default></key>
<key id="gen" for="edge" attr.name="gen_method" attr.type="string"/>
<key id="scale" for="edge" attr.name="multi_scale" attr.type="int"/>
<key id="scope" for="edge" attr.name="id_scope" attr.type="int"><default>0</default></key>
<graph id="tiny" edgedefault="directed">
<node id="c"><data key="root">1</data><data key="type">cluster</data></node>
<node id="n"><data key="type">node</data></node>
<node id="k"><data key="type">core</data><data key="size">2</data></node>
<edge source="c" target="n"><data key="gen">MULTIPLY</data><data key="scale">2</data></edge>
<edge source="n" target="k">
<data key="gen">MULTIPLY</data><data key="scale">3</data><data key="scope">1</data></edge>
</graph></graphml>"""
RSET = (
    '{"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "0-1", "gpu": "0"}}], '
    '"nodelist": ["node[0-1]"], "properties": {"fast": "0"}, "starttime": 0, "expiration": 0}}'
)


def shape(graph: Graph) -> list[tuple[object, ...]]:
    """Everything in the graph that a reader could have changed."""
    return [
        (
            v.index,
            v.type,
            v.size,
            dict(v.paths),
            {s: list(kids) for s, kids in v.children.items()},
        )
        for v in graph.vertices.values()
    ] + [(subsystem, root.index) for subsystem, root in graph.roots.items()]


def works(graph: Graph) -> None:
    """Checks that an accepted graph is complete and can be matched."""
    graph.check_complete()
    for policy in ("first", "low"):
        engine = Engine(graph, policy)
        for resource in sorted(graph.types() - {"slot"})[:3]:
            engine.match(1, slot_request({resource: 1}), 0)
            if 1 in engine.jobs:
                engine.release(1)
            engine.match(2, slot_request({resource: 1}), 0, MatchOp.SATISFIABILITY)
    assert all(vertex.state is None for vertex in graph.vertices.values())


def into_graph(read: Callable[[str], Graph]) -> Read:
    def reading(text: str) -> None:
        works(read(text))

    return reading


def into_attach(text: str) -> None:
    graph = cluster_of(nodes=2, cores=2, gpus=1)
    before = shape(graph)
    try:
        attach_jgf(graph, text)
    except BadRequest:
        assert shape(graph) == before, "a failed attach must leave the graph unchanged"
        raise
    works(graph)


def into_marks(read: Callable[[Graph, str], object]) -> Read:
    def reading(text: str) -> None:
        graph = cluster_of(nodes=2, cores=2, gpus=1)
        before = shape(graph)
        try:
            read(graph, text)
        finally:
            assert shape(graph) == before

    return reading


def into_search(text: str) -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    find(engine.graph.root, parse_expression(text))


def into_filters(text: str) -> None:
    Engine(cluster_of(nodes=1, cores=1), "first", text).match(1, slot_request({"core": 1}), 0)


READERS: dict[str, Read] = {
    "jgf": into_graph(read_jgf),
    "attach": into_attach,
    "jgf marks": into_marks(claims_in_jgf),
    "grug": into_graph(read_grug),
    "rv1exec": into_graph(read_rv1exec),
    "rset marks": into_marks(claims_in_rset),
    "rset ranks": ranks_in_rset,
    "expression": into_search,
    "policy": parse_policy,
    "filters": into_filters,
}
BYTE_READERS: dict[str, Callable[[bytes], object]] = {
    "jgf": read_jgf,
    "attach": lambda data: attach_jgf(cluster_of(nodes=1, cores=1), data),
    "grug": read_grug,
    "rv1exec": read_rv1exec,
}
VALID: dict[str, str] = {
    "jgf": json.dumps(JGF_TREE),
    "attach": json.dumps(ATTACH_TREE),
    "jgf marks": json.dumps(MARKS_TREE),
    "grug": GRUG,
    "rv1exec": RSET,
    "rset marks": RSET,
    "rset ranks": RSET,
    "expression": "status=up and ( sched-now=free or jobid-alloc=3 ) names=n[0-2] property=x agfilter=true",
    "policy": "policy=high node_centric=true node_exclusive=false stop_on_1_matches=true",
    "filters": "ALL:core,ALL:node,cluster:gpu",
}

SIGNS = "{ } [ ] , : ' \" / // < > </ /> & &amp; &#0; <!-- --> <![CDATA[ ]]> = ( ) - \\ \\u0000 . ^ | !"
VALUES = "0 -1 00 1e9 1e999 NaN true false null 2147483648 9223372036854775808 99999999999999999999999"
WORDS = "id metadata type paths size rank containment power root source target MULTIPLY and or status"
RARE = ["\x00", "\x85", "\ufeff", "\u2028", "\ud800", "\U0010ffff", " ", "\n", "\t", "²", "１"]
PIECES = st.sampled_from([*SIGNS.split(), *VALUES.split(), *WORDS.split(), *RARE])
MESS = st.text(max_size=60) | st.lists(PIECES, max_size=30).map("".join)
EDIT = st.tuples(st.integers(0, 5000), st.integers(0, 12), PIECES | st.text(max_size=4) | st.just(""))
FUZZ = settings(max_examples=max(settings().max_examples // 2, 1))


@pytest.mark.parametrize("name", VALID)
def test_the_unedited_documents_are_valid(name: str) -> None:
    READERS[name](VALID[name])


@pytest.mark.parametrize("name", READERS)
@FUZZ
@given(text=MESS)
def test_any_text_is_read_or_rejected(name: str, text: str) -> None:
    answers(READERS[name], text)


@pytest.mark.parametrize("name", READERS)
@FUZZ
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
def test_an_edited_document_is_read_or_rejected(name: str, edits: list[tuple[int, int, str]]) -> None:
    answers(READERS[name], edited(VALID[name], edits))


@pytest.mark.parametrize("name", BYTE_READERS)
@FUZZ
@given(data=st.binary(max_size=60), position=st.integers(0, 2000), value=st.integers(0, 255))
def test_any_bytes_are_read_or_rejected(name: str, data: bytes, position: int, value: int) -> None:
    broken = bytearray(VALID[name].encode())
    broken[position % len(broken)] = value
    for text in (
        data,
        bytes(broken),
        VALID[name].encode("utf-16"),
        b"\xff\xfe" + data,
        VALID[name].encode()[:position],
    ):
        answers(BYTE_READERS[name], text)


# JGF documents with a randomly changed tree that are still valid JSON


VALUES_IN_JSON = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        2**31,
        2**62 + 1,
        2**63,
        10**30,
        0.5,
        "",
        "x",
        "0",
        "1",
        "/",
        "//",
        "/cluster0",
        "/cluster0/node0",
        "/power0",
        [],
        {},
        ["0"],
        {"containment": "/cluster0"},
        {"power": "/power0"},
    ]
)
KEYS = st.sampled_from(
    ["id", "type", "name", "basename", "rank", "size", "status", "unit", "uniq_id", "paths", "exclusive"]
)
PATHS = st.sampled_from(
    ["/cluster0", "/cluster0/node0", "/cluster0/node9", "/cluster0/node9/core0", "/other", "x"]
)
TYPES = st.sampled_from(["cluster", "rack", "node", "core", "slot", "", "memory"])


@st.composite
def mutated(draw: st.DrawFn, tree: Tree) -> str:
    copy = json.loads(json.dumps(tree))
    nodes, edges = copy["graph"]["nodes"], copy["graph"]["edges"]
    ids = [node["id"] for node in nodes] + ["77"]
    for _ in range(draw(st.integers(1, 4))):
        node = draw(st.sampled_from(nodes))
        match draw(st.integers(0, 7)):
            case 0:
                node["metadata"][draw(KEYS)] = draw(VALUES_IN_JSON)
            case 1:
                node["metadata"].pop(draw(KEYS), None)
            case 2:
                edges.append({"source": draw(st.sampled_from(ids)), "target": draw(st.sampled_from(ids))})
            case 3:
                edges.append(json.loads(json.dumps(draw(st.sampled_from(edges)))))
            case 4:
                power = {"subsystem": draw(st.sampled_from(["power", "containment"]))}
                ends = draw(st.sampled_from(ids)), draw(st.sampled_from(ids))
                edges.append({"source": ends[0], "target": ends[1], "metadata": power})
            case 5:
                nodes.append(entry(77, draw(TYPES), draw(PATHS), rank=draw(st.integers(-1, 9))))
            case 6:
                node["metadata"]["paths"] = {
                    "containment": draw(PATHS),
                    "power": draw(st.sampled_from(["/p", "/p/x"])),
                }
            case _:
                edges.pop(draw(st.integers(0, len(edges) - 1))) if len(edges) > 1 else node.pop("id", None)
    return json.dumps(copy)


@settings(max_examples=settings().max_examples * 3)
@given(text=mutated(JGF_TREE))
def test_a_mutated_graph_is_read_completely_or_rejected(text: str) -> None:
    answers(READERS["jgf"], text)


@settings(max_examples=settings().max_examples * 3)
@given(text=mutated(ATTACH_TREE))
def test_a_mutated_subgraph_is_attached_completely_or_not_at_all(text: str) -> None:
    answers(into_attach, text)


@given(text=mutated(MARKS_TREE))
def test_a_mutated_resource_set_is_located_or_rejected(text: str) -> None:
    answers(READERS["jgf marks"], text)


@settings(max_examples=settings().max_examples * 2)
@given(
    edges=st.lists(
        st.tuples(
            st.sampled_from("cnkp"),
            st.sampled_from("cnkp"),
            st.sampled_from(["MULTIPLY", "ASSOCIATE_IN", "ASSOCIATE_BY_PATH_IN", "OTHER"]),
            st.sampled_from(["0", "1", "2", "3"]),
            st.sampled_from(["-1", "0", "1", "2", "9"]),
            st.sampled_from(["containment", "power"]),
            st.sampled_from(["0", "1", "9"]),
        ),
        max_size=6,
    ),
    roots=st.sets(st.sampled_from("cnkp")),
)
def test_any_recipe_generates_a_usable_graph_or_is_rejected(
    edges: list[tuple[str, str, str, str, str, str, str]], roots: set[str]
) -> None:
    types = {"c": "cluster", "n": "node", "k": "core", "p": "node"}
    nodes = "".join(
        f'<node id="{key}"><data key="type">{name}</data><data key="root">{int(key in roots)}</data></node>'
        for key, name in types.items()
    )
    links = "".join(
        f'<edge source="{source}" target="{target}"><data key="gen_method">{method}</data>'
        f'<data key="multi_scale">{scale}</data><data key="id_scope">{scope}</data>'
        f'<data key="e_subsystem">{subsystem}</data><data key="as_tgt_uplvl">{up}</data></edge>'
        for source, target, method, scale, scope, subsystem, up in edges
    )
    answers(READERS["grug"], f"<graphml><graph>{nodes}{links}</graph></graphml>")


# Inputs that try to exhaust memory


def laughs(levels: int) -> str:
    entities = "".join(
        f'<!ENTITY l{level} "{"".join([f"&l{level - 1};"] * 10)}">' for level in range(1, levels)
    )
    return (
        f'<?xml version="1.0"?><!DOCTYPE g [<!ENTITY l0 "lol">{entities}]><graphml>&l{levels - 1};</graphml>'
    )


def association(count: int) -> str:
    """A short recipe that associates `count` vertices with `count` others."""
    multiplied = f'<data key="gen_method">MULTIPLY</data><data key="multi_scale">{count}</data></edge>'
    associated = '<data key="gen_method">ASSOCIATE_IN</data><data key="e_subsystem">power</data></edge>'
    return (
        '<graphml><graph><node id="c"><data key="type">cluster</data><data key="root">1</data></node>'
        '<node id="a"><data key="type">rack</data></node><node id="b"><data key="type">node</data></node>'
        '<node id="x"><data key="type">node</data></node>'
        f'<edge source="c" target="b">{multiplied}<edge source="c" target="a">{multiplied}'
        f'<edge source="a" target="x">{associated}'
        "</graph></graphml>"
    )


def chain(length: int) -> str:
    nodes, edges, path = [], [], ""
    for number in range(length):
        path += f"/v{number}"
        nodes.append(entry(number, "box", path))
        edges.append((number, number + 1))
    return json.dumps(document(*nodes, edges=edges[:-1]))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_grug, laughs(10)),
        (read_grug, '<!DOCTYPE graphml SYSTEM "file:///etc/passwd">' + GRUG.split("?>")[1]),
        (read_grug, '<!DOCTYPE graphml [<!ENTITY x SYSTEM "file:///etc/passwd">]><graphml>&x;</graphml>'),
        (read_grug, '<!DOCTYPE graphml [<!ENTITY % x SYSTEM "http://localhost/"> %x;]><graphml/>'),
        (read_grug, GRUG.replace(">2<", ">1000000000<")),
        (read_grug, GRUG.replace(">2<", ">3000<").replace(">3<", ">3000<")),
        (read_grug, GRUG.replace(">2<", ">99999999999999999999<")),
        (read_grug, association(1100)),
        (read_grug, "<graphml>" * 50_000),
        (
            read_grug,
            "<graphml><graph>" + "".join(f'<node id="{n}"/>' for n in range(20_000)) + "</graph></graphml>",
        ),
        (read_grug, "<graphml>" + "x" * (5 * MIB) + "</graphml>"),
        (read_jgf, '{"graph": ' * 50_000),
        (read_jgf, "[" * 100_000 + "]" * 100_000),
        (read_jgf, chain(70)),
        (read_jgf, VALID["jgf"].replace('"size": 8', '"size": ' + "9" * 100_000)),
        (read_jgf, VALID["jgf"].replace('"size": 8', '"size": -1')),
        (read_jgf, VALID["jgf"].replace('"rank": 0', '"rank": 1e400')),
        (read_rv1exec, RSET.replace("0-1", "0-4294967294")),
        (read_rv1exec, RSET.replace('"core": "0-1"', '"core": "0-4294967294"')),
        (parse_expression, "(" * 4000),
        (parse_expression, "names=n[0-999999999]"),
        (parse_expression, "status=up " * 100_000),
    ],
    ids=[
        "laughs",
        "doctype",
        "file entity",
        "parameter entity",
        "huge scale",
        "huge product",
        "number",
        "association",
        "deep xml",
        "recipe size",
        "text size",
        "deep objects",
        "deep lists",
        "deep graph",
        "long number",
        "negative",
        "infinite",
        "ranks",
        "cores",
        "parentheses",
        "names",
        "long expression",
    ],
)
def test_exploding_input_is_rejected_in_bounded_memory(read: Read, text: str) -> None:
    with bounded(64 * MIB), pytest.raises(BadRequest):
        read(text)


def test_the_deepest_accepted_graph_is_usable() -> None:
    works(read_jgf(chain(60)))


def test_the_longest_accepted_expression_can_be_evaluated() -> None:
    into_search("status=up " * 400)

from __future__ import annotations

import tracemalloc

import pytest
import yaml

from penstock.errors import BadRequest
from penstock.model import yaml_tree
from penstock.model.document import (
    BadDocument,
    Mapping,
    Node,
    Scalar,
    Sequence,
    child,
    located,
    parse_document,
    parse_json,
    shown,
)

Plain = str | list["Plain"] | dict[str, "Plain"] | None


def plain(node: Node) -> Plain:
    """The tree without quotes and positions, to compare it with a literal."""
    match node:
        case Scalar():
            return None if node.is_null else node.text
        case Sequence():
            return [plain(entry) for entry in node.items]
        case Mapping():
            return {key: plain(entry) for key, entry in node.items}


def refusal(text: str | bytes, **limits: int) -> BadDocument:
    with pytest.raises(BadDocument) as caught:
        parse_document(text, **limits)
    assert caught.value.where
    assert caught.value.found
    assert caught.value.expected
    return caught.value


@pytest.fixture(params=["compiled", "pure"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both YAML parsers face the same tests."""
    if request.param == "pure":
        monkeypatch.setattr(yaml_tree, "_LOADER", yaml.SafeLoader)
    elif not yaml.__with_libyaml__:
        pytest.skip("PyYAML is built without its compiled parser")
    return str(request.param)


@pytest.mark.usefixtures("parser")
class TestYaml:
    def test_scalars_keep_their_text(self) -> None:
        tree = parse_document("[010, 1e3, no, 2026-01-01, 0x1F, .inf]")
        assert plain(tree) == ["010", "1e3", "no", "2026-01-01", "0x1F", ".inf"]

    def test_nested_collections_keep_their_order(self) -> None:
        tree = parse_document("b:\n  - x\n  - {z: 1, y: 2}\na: w\n")
        assert isinstance(tree, Mapping)
        assert tree.keys() == ("b", "a")
        assert plain(tree) == {"b": ["x", {"z": "1", "y": "2"}], "a": "w"}

    def test_positions_count_from_one(self) -> None:
        tree = parse_document("a: 1\nb:\n  - x\n")
        assert isinstance(tree, Mapping)
        assert (tree.line, tree.column) == (1, 1)
        assert tree.get("a") == Scalar("1", quoted=False, is_null=False, line=1, column=4)
        inner = tree.get("b")
        assert isinstance(inner, Sequence)
        assert (inner.line, inner.column) == (3, 3)

    @pytest.mark.parametrize("text", ["'a'", '"a"', "|-\n  a", ">-\n  a"])
    def test_quoted_and_block_scalars_are_quoted(self, text: str) -> None:
        node = parse_document(text)
        assert isinstance(node, Scalar)
        assert (node.text, node.quoted) == ("a", True)

    @pytest.mark.parametrize("text", ["~", "null", "Null", "NULL", "--- \n", "", "# nothing\n", "   \n"])
    def test_nothing_is_null(self, text: str) -> None:
        node = parse_document(text)
        assert isinstance(node, Scalar)
        assert node.is_null

    @pytest.mark.parametrize("text", ["''", "'null'", '"~"'])
    def test_a_quoted_null_is_text(self, text: str) -> None:
        node = parse_document(text)
        assert isinstance(node, Scalar)
        assert not node.is_null

    def test_keys_are_taken_by_their_text(self) -> None:
        assert plain(parse_document("1: a\ntrue: b\n~: c\n")) == {"1": "a", "true": "b", "~": "c"}

    def test_merge_keys_are_not_special(self) -> None:
        assert plain(parse_document("<<: {a: 1}\nb: 2\n")) == {"<<": {"a": "1"}, "b": "2"}

    def test_tags_are_ignored(self) -> None:
        tree = parse_document("a: !!python/object/apply:os.system ['true']\nb: !x 1\n")
        assert plain(tree) == {"a": ["true"], "b": "1"}

    def test_an_alias_repeats_its_node(self) -> None:
        assert plain(parse_document("a: &x [1, 2]\nb: *x\nc: 3\n")) == {
            "a": ["1", "2"],
            "b": ["1", "2"],
            "c": "3",
        }

    def test_an_alias_of_a_scalar_may_be_a_key(self) -> None:
        assert plain(parse_document("a: &x k\n*x : 1\n")) == {"a": "k", "k": "1"}

    @pytest.mark.parametrize(
        ("text", "summary"),
        [
            ("a: [", "not valid YAML"),
            ("a: b: c", "not valid YAML"),
            ("\t- a", "not valid YAML"),
            ("a\x00b", "not valid YAML"),
            ("a: 1\na: 2\n", "duplicate key in a mapping"),
            ("{1: a, '1': b}", "duplicate key in a mapping"),
            ("--- a\n--- b\n", "more than one document"),
            ("a: *x", "alias without an anchor"),
            ("&x [*x]", "alias within its own node"),
            ("&x {a: {b: *x}}", "alias within its own node"),
            ("? [a]\n: b\n", "a mapping key is not a scalar"),
            ("? {a: b}\n: c\n", "a mapping key is not a scalar"),
            ("a: &x [1]\n*x : 2\n", "a mapping key is not a scalar"),
        ],
    )
    def test_what_is_not_one_plain_document_is_refused(self, text: str, summary: str) -> None:
        assert refusal(text).summary == summary

    def test_a_syntax_error_tells_its_line(self) -> None:
        assert refusal("a: 1\nb: c: d\n").where.startswith("line 2, column ")

    def test_aliases_count_as_if_written_out(self) -> None:
        text = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
        # 3 keys, the mapping itself, and 3 + 7 + 15 nodes below it.
        assert parse_document(text, nodes_max=29)
        assert refusal(text, nodes_max=28).expected == "at most 28 nodes"

    def test_an_alias_cannot_hide_depth(self) -> None:
        text = "a: &a [[x]]\nb: [[*a]]\n"
        assert parse_document(text, depth_max=6)
        assert refusal(text, depth_max=5).expected == "a depth of at most 5"

    def test_an_alias_bomb_fails_in_bounded_memory(self) -> None:
        text = "a0: &a0 [x]\n" + "".join(
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40)
        )
        tracemalloc.start()
        try:
            assert refusal(text).summary == "the document has too many nodes"
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()

    def test_deep_nesting_is_refused_with_its_bound(self) -> None:
        assert refusal("- " * 5000 + "x").expected == "a depth of at most 64"
        assert refusal("{a: " * 500).expected == "a depth of at most 64"

    def test_exactly_the_deepest_level_passes(self) -> None:
        assert parse_document("- - - x", depth_max=4)
        assert refusal("- - - - x", depth_max=4).expected == "a depth of at most 4"

    def test_many_nodes_are_refused_with_their_bound(self) -> None:
        assert parse_document("- a\n" * 9, nodes_max=10)
        assert refusal("- a\n" * 10, nodes_max=10).expected == "at most 10 nodes"


def test_many_directives_are_refused() -> None:
    text = "".join(f"%TAG !t{i}! tag:x\n" for i in range(1000)) + "--- a\n"
    assert refusal(text).summary == "too many directives"


class TestJson:
    def test_json_is_read_with_exact_numbers(self) -> None:
        tree = parse_document('{"a": [1.10, 1E+400, -0, 12345678901234567890], "b": {"c": "x"}}')
        assert plain(tree) == {"a": ["1.10", "1E+400", "-0", "12345678901234567890"], "b": {"c": "x"}}

    def test_json_strings_are_quoted_and_the_rest_is_plain(self) -> None:
        tree = parse_document('["1", 1, true, false, null, "null"]')
        assert isinstance(tree, Sequence)
        scalars = [entry for entry in tree.items if isinstance(entry, Scalar)]
        assert [scalar.quoted for scalar in scalars] == [True, False, False, False, False, True]
        assert [scalar.is_null for scalar in scalars] == [False, False, False, False, True, False]
        assert [scalar.text for scalar in scalars[2:4]] == ["true", "false"]

    def test_flow_yaml_that_is_no_json_is_read_as_yaml(self) -> None:
        assert plain(parse_document(" {a: b, c: [d]}")) == {"a": "b", "c": ["d"]}

    def test_tabs_and_a_byte_order_mark_are_no_obstacle(self) -> None:
        assert plain(parse_document(b'\xef\xbb\xbf\n{\t"a":\t1}')) == {"a": "1"}

    @pytest.mark.parametrize(
        ("text", "summary"),
        [
            ('{"a": 1, "b": 2, "a": 3}', "duplicate key in a mapping"),
            ('[{"a": 1, "\\u0061": 3}]', "duplicate key in a mapping"),
            ("[NaN]", "not a JSON number"),
            ('{"a": -Infinity}', "not a JSON number"),
            ('["\\ud800"]', "lone surrogate in a string"),
            ('{"\\udc00": 1}', "lone surrogate in a string"),
        ],
    )
    def test_json_that_cannot_be_trusted_is_refused(self, text: str, summary: str) -> None:
        assert refusal(text).summary == summary

    def test_deep_json_is_refused_with_its_bound(self) -> None:
        assert refusal("[" * 50_000 + "]" * 50_000).expected == "a depth of at most 64"
        assert refusal('{"a":' * 65 + "1" + "}" * 65).expected == "a depth of at most 64"
        assert parse_document("[" * 64 + "]" * 64)

    def test_nodes_are_counted_before_they_are_built(self) -> None:
        text = "[" + "0," * 400_000 + "0]"
        tracemalloc.start()
        try:
            assert refusal(text).expected == "at most 100000 nodes"
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()

    def test_commas_and_brackets_in_strings_are_no_nodes(self) -> None:
        text = '["' + "[,{" * 1000 + '\\"", [ ], {\n}]'
        assert parse_document(text, nodes_max=4)
        assert refusal(text, nodes_max=3).expected == "at most 3 nodes"

    def test_keys_count_as_nodes_like_in_yaml(self) -> None:
        for text in ('{"a": {"b": "c"}}', "a: {b: c}"):
            assert parse_document(text, nodes_max=5)
            assert refusal(text, nodes_max=4)


class TestJsonOnly:
    def test_yaml_is_refused(self) -> None:
        for text in ("a: b", "{a: b}", "", "[1,]", "[1] 2"):
            with pytest.raises(BadDocument, match="not valid JSON"):
                parse_json(text)

    def test_the_place_of_the_error_is_told(self) -> None:
        with pytest.raises(BadDocument) as caught:
            parse_json('{"a": 1,\n "b" 2}')
        assert caught.value.where == "line 2, column 6"

    def test_bounds_hold(self) -> None:
        with pytest.raises(BadDocument, match="at most 3 bytes"):
            parse_json("[[]]", size_max=3)
        with pytest.raises(BadDocument, match="a depth of at most 1"):
            parse_json("[[]]", depth_max=1)
        with pytest.raises(BadDocument, match="at most 1 nodes"):
            parse_json("[[]]", nodes_max=1)


def test_too_large_a_text_is_refused_with_its_bound() -> None:
    assert refusal("x" * ((1 << 20) + 1)).expected == "at most 1048576 bytes"
    assert refusal(b"x" * 11, size_max=10).expected == "at most 10 bytes"
    assert parse_document("x" * 10, size_max=10)


def test_size_is_counted_in_bytes() -> None:
    assert refusal("é" * 6, size_max=10).found == "12 bytes"


@pytest.mark.parametrize("text", [b"\xff\xfea\x00", b"a: \xc3", "a: \ud800"])
def test_what_is_not_utf8_is_refused(text: str | bytes) -> None:
    assert refusal(text).summary == "the text is not UTF-8"


def test_a_bad_document_is_a_bad_request() -> None:
    assert issubclass(BadDocument, BadRequest)


def test_the_tree_is_hashable() -> None:
    assert len({parse_document("{a: [b]}"), parse_document("{a: [b]}")}) == 1


def test_a_missing_key_gives_none() -> None:
    tree = parse_document("a: 1")
    assert isinstance(tree, Mapping)
    assert tree.get("b") is None


def test_a_place_names_its_line_when_known() -> None:
    assert located("a.b", parse_document("x")) == "a.b (line 1)"
    assert located("a.b", parse_document("[]")) == "a.b"
    assert located("a.b", None) == "a.b"


def test_what_was_found_is_shown_shortly() -> None:
    assert shown(None) == "nothing"
    assert shown(parse_document("~")) == "null"
    assert shown(parse_document("5")) == "5"
    assert shown(parse_document("'5'")) == "'5'"
    assert shown(parse_document("[1, 2]")) == "a sequence of 2"
    assert shown(parse_document("{}")) == "an empty mapping"
    assert shown(parse_document("{a: 1, b: 2}")) == "a mapping with keys a, b"
    assert shown(parse_document(str({str(i): i for i in range(10)}))).endswith("7, ...")
    assert len(shown(parse_document("x" * 1000))) < 100


def test_a_key_in_a_path_is_cut_and_quoted() -> None:
    assert child("a", "b") == "a.b"
    assert child("a", "b\nc") == r"a.'b\nc'"
    assert len(child("a", "b" * 1000)) < 100

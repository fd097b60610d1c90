from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.hostlist import BadHostlist, encode_hostlist, parse_hostlist


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        ("a", "a"),
        ("a,b,a", "a b a"),
        ("foo[1-5]", "foo1 foo2 foo3 foo4 foo5"),
        ("foo[0-4]-eth2", "foo0-eth2 foo1-eth2 foo2-eth2 foo3-eth2 foo4-eth2"),
        ("[00-2]", "00 01 02"),
        ("foo[1,1,2,1]", "foo1 foo1 foo2 foo1"),
        ("foo[005,4,11-13]", "foo005 foo004 foo011 foo012 foo013"),
        ("foo[4,005]", "foo4 foo5"),
        ("foo[0]", "foo0"),
        ("foo[9-11]", "foo9 foo10 foo11"),
        ("foo[10,5]", "foo10 foo5"),
        ("foo[08-11]", "foo08 foo09 foo10 foo11"),
        ("foo[5-5]", "foo5"),
        ("kind-worker,kind-worker[2-4]", "kind-worker kind-worker2 kind-worker3 kind-worker4"),
        ("a[1],b[2]c,d", "a1 b2c d"),
        ("a[1,3],b", "a1 a3 b"),
        ("node.example.org", "node.example.org"),
    ],
)
def test_a_hostlist_is_read_in_order(text: str, hosts: str) -> None:
    assert parse_hostlist(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("a,,b", "empty host name"),
        (",a", "empty host name"),
        ("a,", "empty host name"),
        (",", "empty host name"),
        ("foo[3-1]", "descending range"),
        ("foo[]", "not an id"),
        ("foo[1-]", "not an id"),
        ("foo[-1]", "not an id"),
        ("foo[1,]", "not an id"),
        ("foo[,1]", "not an id"),
        ("foo[1,,2]", "not an id"),
        ("foo[a]", "not an id"),
        ("foo[1 ,2]", "not an id"),
        ("foo[1-2-3]", "not an id"),
        ("foo[١]", "not an id"),
        ("foo[[1]]", "nested brackets"),
        ("foo[1[2]3]", "nested brackets"),
        ("foo[1", "unbalanced brackets"),
        ("foo1]", "unbalanced brackets"),
        ("foo[1]]", "unbalanced brackets"),
        ("]foo[", "unbalanced brackets"),
        ("foo[1][2]", "more than one bracket group in a name"),
        ("foo[1]x[2]", "more than one bracket group in a name"),
        ("foo bar", "character not allowed in a host name"),
        ("foo, bar", "character not allowed in a host name"),
        ("foo\n", "character not allowed in a host name"),
        ("foo\x00", "character not allowed in a host name"),
        ("foo[1] ", "character not allowed in a host name"),
        ("foo[" + "1" * 19 + "]", "id too long"),
        ("foo[" + "1" * 10_000 + "]", "id too long"),
        ("x" * 256, "host name too long"),
        ("x" * 250 + "[1-100000]", "too many hosts"),
        ("x" * 250 + "[1-10000]y", "host name too long"),
    ],
)
def test_what_is_no_hostlist_is_refused(text: str, summary: str) -> None:
    with pytest.raises(BadHostlist) as caught:
        parse_hostlist(text)
    assert caught.value.summary == summary
    assert caught.value.where.startswith("hostlist, character ")
    assert caught.value.found
    assert caught.value.expected


def test_a_single_name_may_have_any_number_of_digits() -> None:
    assert parse_hostlist("n" + "1" * 100) == ("n" + "1" * 100,)


@pytest.mark.parametrize("text", ["foo[0-1048576]", "n[0-999999999]", "n[1-999999999999999999]"])
def test_too_many_hosts_are_refused_before_they_are_expanded(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadHostlist, match="too many hosts"):
            parse_hostlist(text)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_hosts_are_counted_over_the_whole_list() -> None:
    assert len(parse_hostlist("a,b[1-3],c", hosts_max=5)) == 5
    for text in ("a,b[1-3],c,d", "a,b[1-5]", "a,b[1-3],c[1,2]"):
        with pytest.raises(BadHostlist, match="too many hosts"):
            parse_hostlist(text, hosts_max=5)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("", ""),
        ("node1", "node1"),
        ("node0 node1 node3", "node[0-1,3]"),
        ("kind-worker kind-worker2 kind-worker3", "kind-worker,kind-worker[2-3]"),
        ("foo9 foo10", "foo[9-10]"),
        ("foo09 foo10", "foo[09-10]"),
        ("foo9 foo010", "foo9,foo010"),
        ("foo10 foo09", "foo10,foo09"),
        ("foo1 foo01", "foo1,foo01"),
        ("foo1 foo1 foo2 foo1", "foo[1,1-2,1]"),
        ("foo3 foo2 foo1", "foo[3,2,1]"),
        ("a1 b1 a2", "a1,b1,a2"),
        ("a1 a2 b1 b2", "a[1-2],b[1-2]"),
        ("00 01 02", "[00-02]"),
        ("foo0-eth2 foo1-eth2 foo1-eth3", "foo0-eth2,foo1-eth[2-3]"),
        ("foo099 foo100", "foo[099-100]"),
        ("foo99 foo100", "foo[99-100]"),
        ("foo099 foo1000", "foo[099,1000]"),
    ],
)
def test_neighbours_are_joined_and_order_is_kept(hosts: str, text: str) -> None:
    assert encode_hostlist(hosts.split()) == text
    assert parse_hostlist(text) == tuple(hosts.split())


def test_a_very_long_number_stays_as_it_is() -> None:
    names = ["n" + "1" * 30, "n" + "1" * 29 + "2"]
    assert encode_hostlist(names) == ",".join(names)


@pytest.mark.parametrize("name", ["", "a,b", "a[1]", "a b", "a]", "a\n", "x" * 256])
def test_what_is_no_host_name_cannot_be_written(name: str) -> None:
    with pytest.raises(BadHostlist, match="not a host name"):
        encode_hostlist([name])


NAMES = (
    st.from_regex(r"(n|m|rack1-n)?(0{0,2}[0-9]{1,3})", fullmatch=True)
    | st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True)
    | st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters=",[]"), min_size=1, max_size=30
    )
)


@settings(max_examples=250, deadline=None)
@given(st.lists(NAMES, max_size=12))
def test_what_is_written_is_read_back(names: list[str]) -> None:
    assert parse_hostlist(encode_hostlist(names)) == tuple(names)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=20), st.integers(0, 4))
def test_numbered_names_are_read_back(numbers: list[int], width: int) -> None:
    names = tuple(f"n{number:0{width}d}" for number in numbers)
    assert parse_hostlist(encode_hostlist(names)) == names

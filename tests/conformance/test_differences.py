"""The intended differences between Penstock's and Fluxion's `resource-query`, with tests for each.

docs/reference/fluxion-differences.md names these tests; the last two tests check that page.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from penstock.cli.resource_query import Streams, main
from penstock.engine import Engine, cluster_of, slot_request
from penstock.model.jobspec import Jobspec, parse_jobspec
from tests.builders import held
from tests.sessions import RULE, Inputs, of, slot

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "fluxion-differences.md"


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path)


def nodes(inputs: Inputs, count: int, cores: str = "0") -> list[str]:
    """Options that load `count` nodes whose cores have the same ids, hence the same scores."""
    last = count - 1
    return ["-f", "rv1exec", "-L", inputs.rset("nodes.json", f"0-{last}", f"n[0-{last}]", core=cores)]


# Order of equals


def test_up_to_4096_equals_are_ordered_as_by_libstdcxx(inputs: Inputs) -> None:
    one = inputs.job("one.json", slot(of("core")))
    result = inputs.run([*nodes(inputs, 17), "-P", "low"], *[f"match allocate {one}"] * 3)
    assert [line for line in result.tree() if line.startswith("n")] == ["n8[1:s]", "n0[1:s]", "n1[1:s]"]
    assert inputs.run([*nodes(inputs, 16), "-P", "low"], f"match allocate {one}").tree()[1] == "n0[1:s]"
    assert inputs.run([*nodes(inputs, 4096), "-P", "low"], f"match allocate {one}").tree()[1] != "n0[1:s]"


def test_above_4096_equals_keep_their_order(inputs: Inputs) -> None:
    one = inputs.job("one.json", slot(of("core")))
    result = inputs.run([*nodes(inputs, 4100), "-P", "low"], *[f"match allocate {one}"] * 3)
    assert [line for line in result.tree() if line.startswith("n")] == ["n0[1:s]", "n1[1:s]", "n2[1:s]"]


def test_in_the_python_api_equals_keep_their_order() -> None:
    engine = Engine(cluster_of(nodes=17, cores=1), policy="low")
    for job in range(3):
        assert held(engine.match(job, slot_request({"core": 1}), now=0)) == [f"node{job}/core0"]


# Slots from pools


def test_pools_that_pack_badly_still_provide_the_slots_that_fit(inputs: Inputs) -> None:
    graph = inputs.cluster(cores=0, pools=3, pool_size=2)
    three = inputs.job("three.json", slot(of("memory", 3)))
    result = inputs.run([*graph, "-P", "low"], f"match allocate {three}", f"match allocate {three}")
    assert result.tree() == ["memory0[2:x]", "memory1[2:x]", "node0[1:s]", "cluster0[1:s]"]
    assert result.values("RESOURCES") == ["ALLOCATED"]
    assert "INFO: No matching resources found" in result.lines()


# The end of input


def test_the_end_of_input_ends_the_session(inputs: Inputs) -> None:
    result = inputs.run(inputs.cluster(), "get-status /cluster0")
    assert (result.code, result.out) == (0, "/cluster0 is up\n")


def test_a_closed_pipe_ends_the_session_quietly(inputs: Inputs) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(f"no reader for {text!r}")

    err = io.StringIO()
    assert main(inputs.cluster(), Streams([b"help\n", b"help\n"], Closed(), err)) == 0
    assert err.getvalue() == ""


# Invalid options


def test_an_unknown_subsystem_is_reported_with_exit_code_1(inputs: Inputs) -> None:
    result = inputs.run([*inputs.cluster(), "-S", "DISK"], "help")
    assert (result.code, result.out) == (1, "")
    assert "'DISK' is not one of" in result.err.splitlines()[0]


def test_the_last_of_two_prune_filter_options_applies(inputs: Inputs) -> None:
    graph = [*inputs.cluster(racks=1), "-F", "jgf", "-p", "ALL:core", "-p", "ALL:node"]
    result = inputs.run(graph, "find names=rack0 and agfilter=true")
    assert result.code == 0
    assert '"agfilter": {"node": "used:0, total:1"}' in result.out


# The earliest start


@pytest.mark.parametrize("filters", ["ALL:core", "ALL:node", "ALL:core,ALL:node", "rack:gpu"])
def test_a_reservation_can_start_at_the_end_of_a_job_that_no_filter_counts(
    inputs: Inputs, filters: str
) -> None:
    both = inputs.job("both.json", slot(of("node"), count=2), duration=3600)
    one = inputs.job("one.json", slot(of("node")), duration=600)
    result = inputs.run(
        [*inputs.cluster(nodes=2), "-p", filters],
        f"match allocate {both}",
        f"match allocate_orelse_reserve {one}",
    )
    assert result.values("RESOURCES") == ["ALLOCATED", "RESERVED"]
    assert result.values("SCHEDULED AT") == ["Now", "3600"]


# Removing allocated resources


def test_removing_a_subtree_releases_the_allocations_in_it(inputs: Inputs) -> None:
    every = inputs.job("every.json", slot(of("node"), count=4))
    look = "find names=cluster0 and agfilter=true"
    result = inputs.run(
        [*inputs.cluster(racks=2, nodes=4), "-F", "jgf"],
        f"match allocate {every}",
        look,
        "remove /cluster0/rack1 true",
        look,
        "cancel 1",
        look,
    )
    found = re.findall(r'"node": "(used[^"]*)"', result.out)
    assert found == ["used:4, total:4", "used:2, total:2", "used:0, total:2"]


@pytest.mark.parametrize("subgraph", ["/cluster0/node1 true", "1 false", "[1] false"])
def test_a_job_without_resources_left_is_canceled(inputs: Inputs, subgraph: str) -> None:
    one = inputs.job("one.json", slot(of("core")))
    graph = [*inputs.cluster(nodes=2), "-P", "hinode"]
    result = inputs.run(graph, f"match allocate {one}", f"remove {subgraph}", "info 1", "cancel 1")
    assert result.lines()[-1].startswith("INFO: 1, CANCELED, 0, ")
    assert result.err == "cancel: ERROR: nonexistent job 1\n"


# Sets that rlite cannot represent


def test_an_unwritable_set_is_not_mixed_with_the_next_job(inputs: Inputs) -> None:
    node = inputs.job("node.json", slot(of("node")))
    core = inputs.job("core.json", slot(of("core")))
    look = "find sched-now=allocated"
    result = inputs.run(
        [*inputs.cluster(nodes=2), "-F", "rlite", "-P", "low"],
        f"match allocate {node}",
        f"match allocate {core}",
        look,
        "cancel 1",
        look,
    )
    assert result.err == "match_allocate: ERROR: match writer emit: Invalid argument\n"
    assert result.values("JOBID") == ["1", "1"]
    on_node = '{"rank": "0", "children": {"core": "0-1"}}'
    on_core = '{"rank": "1", "children": {"core": "0"}}'
    sets = [line for line in result.lines() if line.startswith("[")]
    assert sets == [f"[{on_core}]", f"[{on_core}, {on_node}]", f"[{on_node}]"]


# Partial cancel by rank


def test_a_rack_is_not_exclusive_while_a_partly_released_job_has_a_node_in_it(inputs: Inputs) -> None:
    both = inputs.job("both.json", slot(of("node"), count=2))
    rack = inputs.job("rack.json", of("rack", 1, of("node", 1, slot(of("core"))), exclusive=True))
    ranks = [inputs.rset(f"rank{rank}.json", str(rank), f"node{rank}", core="0") for rank in (0, 1)]
    result = inputs.run(
        inputs.cluster(racks=1, nodes=2),
        f"match allocate {both}",
        f"partial-cancel 1 rv1exec {ranks[0]}",
        f"match allocate {rack}",
        f"partial-cancel 1 rv1exec {ranks[1]}",
        f"match allocate {rack}",
    )
    assert result.values("RESOURCES") == ["ALLOCATED", "ALLOCATED"]
    assert result.values("JOBID") == ["1", "2", "3"]
    assert result.err == ""


# Ambiguous jobspecs


def jobspec(count: str = "1", attributes: str = "{}") -> str:
    core = f"{{type: core, count: {count}}}"
    return (
        f"version: 9999\nresources: [{{type: slot, count: 1, label: default, with: [{core}]}}]\n"
        f"tasks: [{{command: [app], slot: default, count: {{per_slot: 1}}}}]\nattributes: {attributes}\n"
    )


def refusal(inputs: Inputs, text: str) -> str:
    """The error message for a jobspec that is rejected; nothing may be matched."""
    result = inputs.run(inputs.cluster(cores=20), f"match allocate {inputs.write('job.yaml', text)}", "list")
    assert result.lines() == [RULE, "INFO: No matching resources found", "INFO: JOBID=1", RULE]
    return result.err


@pytest.mark.parametrize("number", ["010", "0x10", "+1"])
def test_a_count_that_is_not_plain_decimal_is_an_error(inputs: Inputs, number: str) -> None:
    expected = 'match_allocate: ERROR: Jobspec error for 1: Value of "count" must be an unsigned integer\n'
    assert refusal(inputs, jobspec(number)) == expected


@pytest.mark.parametrize(
    "text",
    [
        jobspec(attributes="{system: {duration: 60, duration: 3600}}"),
        jobspec(count="{min: 1, min: 2}"),
    ],
    ids=["duration", "min"],
)
def test_a_duplicate_key_is_an_error(inputs: Inputs, text: str) -> None:
    assert "duplicate key in a mapping" in refusal(inputs, text)


def test_a_jobspec_larger_than_1_mib_is_an_error(inputs: Inputs) -> None:
    assert "the document is too large" in refusal(inputs, jobspec() + "#" * (1 << 20))
    assert isinstance(parse_jobspec(jobspec() + "#" * (1 << 19)), Jobspec)


# Visit counts


def test_a_cancel_visits_only_the_vertices_of_the_job(inputs: Inputs) -> None:
    one = inputs.job("one.json", slot(of("core")))
    result = inputs.run(inputs.cluster(racks=2, nodes=4), f"match allocate {one}", "cancel 1 stats")
    assert result.tree() == ["core1[1:x]", "node3[1:s]", "rack1[1:s]", "cluster0[1:s]"]
    counts = ['INFO: CANCEL PREORDER COUNT="4"', 'INFO: CANCEL POSTORDER COUNT="4"']
    assert result.lines()[-4:] == [RULE, *counts, RULE]


# Unsupported option values


@pytest.mark.parametrize(
    "option",
    [
        "-f hwloc",
        "-f jgf_shorthand",
        "-F jgf_shorthand",
        "-F rv1_shorthand",
        "-P locality",
        "-P variation",
        "-T flexible",
        "-S IBA",
        "-S c+iba",
        "-S ALL",
    ],
)
def test_an_unsupported_option_value_is_reported_with_exit_code_1(inputs: Inputs, option: str) -> None:
    result = inputs.run([*inputs.cluster(), *option.split()], "help")
    expected = f"penstock resource-query: {option} is not supported yet\n"
    assert (result.code, result.out, result.err) == (1, "", expected)


# The page


def test_the_page_names_every_test_and_no_other() -> None:
    text = PAGE.read_text("utf-8")
    mine = {name for name in globals() if name.startswith("test_") and not name.startswith("test_the_page")}
    assert set(re.findall(r"`(test_\w+)`", text)) == mine


def test_the_page_has_a_reproduction_for_every_difference_and_at_most_a_dozen() -> None:
    sections = PAGE.read_text("utf-8").split("\n## ")[1:]
    assert 0 < len(sections) <= 12
    assert [section for section in sections if "```console" not in section] == []

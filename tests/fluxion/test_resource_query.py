"""`resource-query` sessions: output streams, job numbers, error messages, options and exit codes."""

from __future__ import annotations

import os
import pty
import resource
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sessions import RULE, Inputs, cluster_in_jgf, of, slot

PENSTOCK = Path(sys.executable).parent / "penstock"
TIMEOUT_S = 30
FAILED = [RULE, "INFO: No matching resources found"]


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path)


@pytest.fixture
def one(inputs: Inputs) -> str:
    """A jobspec that requests one core."""
    return inputs.job("one.json", slot(of("core")))


@pytest.fixture
def node(inputs: Inputs) -> str:
    """A jobspec that requests one whole node."""
    return inputs.job("node.json", slot(of("node")))


@pytest.fixture
def large(inputs: Inputs) -> str:
    """A jobspec that small clusters can never satisfy."""
    return inputs.job("large.json", slot(of("core", 99)))


# Input and output streams


def test_unknown_commands_comments_and_empty_lines_are_ignored(inputs: Inputs) -> None:
    result = inputs.run(inputs.cluster(), "", "   ", "# match allocate x", "matching a b", "MATCH allocate x")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_nothing_is_read_after_quit(inputs: Inputs) -> None:
    result = inputs.run(inputs.cluster(), "get-status /cluster0", "q", "get-status /cluster0")
    assert result.lines() == ["/cluster0 is up"]


def test_results_go_to_the_test_output_and_reports_to_standard_output(inputs: Inputs, one: str) -> None:
    file = inputs.folder / "t.out"
    commands = [f"match allocate {one}", "find status=up", "get-status /cluster0", "cancel 1 stats"]
    reports = ["list", "info 1", "stat", f"cat {one}", "help quit"]
    result = inputs.run([*inputs.cluster(), "-t", str(file)], *commands, *reports)
    assert result.err == ""
    assert [line for line in result.lines() if "ALLOCATED" in line or " is up" in line] == []
    assert len(result.lines()) == 1 + 1 + 4 + 2 + 1
    assert result.lines()[-1] == "INFO: quit (q) -- End the session: quit"
    written = file.read_text("utf-8").splitlines()
    assert written[:4] == [
        "      ---------core1[1:x]",
        "      ------node0[1:s]",
        "      ---cluster0[1:s]",
        RULE,
    ]
    assert "/cluster0 is up" in written
    assert written[-1] == RULE


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("match allocate JOB", "m allocate JOB"),
        ("multi-match allocate JOB JOB", "M allocate JOB JOB"),
        ("update allocate rv1exec R 5 0 60", "u allocate rv1exec R 5 0 60"),
        ("attach MORE", "j MORE"),
        ("find status=up", "f status=up"),
        ("cancel 1 stats", "c 1 stats"),
        ("partial-cancel 1 rv1exec R stats", "pc 1 rv1exec R stats"),
        ("set-property /cluster0 a=b", "p /cluster0 a=b"),
        ("get-property /cluster0", "g /cluster0"),
        ("set-status /cluster0 down", "t /cluster0 down"),
        ("get-status /cluster0", "e /cluster0"),
        ("info 9", "i 9"),
        ("cat JOB", "a JOB"),
        ("help", "h"),
        ("quit", "q"),
    ],
)
def test_every_command_has_an_abbreviation(inputs: Inputs, one: str, long: str, short: str) -> None:
    files = {
        "JOB": one,
        "R": inputs.rset("r.json", "0", "node0", core="0"),
        "MORE": inputs.write("more.json", cluster_in_jgf(nodes=3)),
    }
    answers = []
    for command in (long, short):
        words = [files.get(word, word) for word in command.split()]
        result = inputs.run(
            inputs.cluster(nodes=2), f"match allocate {one}", " ".join(words), "get-status /cluster0/node2"
        )
        answers.append((result.out, result.err))
    assert answers[0] == answers[1]


def test_list_and_stat_have_abbreviations(inputs: Inputs) -> None:
    assert inputs.run(inputs.cluster(), "stat").out == inputs.run(inputs.cluster(), "s").out
    assert inputs.run(inputs.cluster(), "list", "l").out == ""


# Job numbers


def test_a_failed_match_uses_a_job_number_a_dry_run_does_not(inputs: Inputs, one: str, large: str) -> None:
    broken = inputs.write("broken.yaml", "a: 1")
    result = inputs.run(
        inputs.cluster(nodes=2),
        f"match without_allocating {one}",
        f"match allocate {large}",
        f"match satisfiability {one}",
        f"match without_allocating_future {one}",
        f"match allocate {broken}",
        f"match allocate_orelse_reserve {large}",
        f"match allocate {one}",
    )
    assert result.values("JOBID") == ["1", "1", "2", "2", "2", "3"]
    assert result.values("RESOURCES") == ["MATCHED", "MATCHED", "ALLOCATED"]


def test_only_operations_that_look_ahead_report_unsatisfiable_requests(inputs: Inputs, large: str) -> None:
    result = inputs.run(
        inputs.cluster(),
        f"match allocate {large}",
        f"match allocate_with_satisfiability {large}",
        f"match satisfiability {large}",
    )
    never = "INFO: Unsatisfiable request"
    assert result.lines() == [
        *[*FAILED, "INFO: JOBID=1", RULE],
        *[*FAILED, never, "INFO: JOBID=2", RULE],
        *[RULE, never, RULE],
    ]


def test_an_invalid_jobspec_is_reported_as_satisfiable(inputs: Inputs) -> None:
    broken = inputs.write("broken.yaml", "a: 1")
    result = inputs.run(inputs.cluster(), f"match satisfiability {broken}")
    assert result.lines() == [RULE, "INFO: Satisfiable request", RULE]
    missing = 'Missing key "version" in top level mapping'
    assert result.err == f"match_allocate: ERROR: Jobspec error for 1: {missing}\n"


def test_a_type_missing_from_the_graph_is_an_error_unless_it_is_built_in(inputs: Inputs) -> None:
    quark = inputs.job("quark.json", slot(of("quark")))
    gpu = inputs.job("gpu.json", slot(of("gpu")))
    result = inputs.run(inputs.cluster(), f"match allocate {quark}", f"match allocate {gpu}")
    assert result.values("JOBID") == ["1", "1"]
    assert result.err.endswith('Value of "type" must be a resource type known to fluxion\n')


def test_multi_match_stops_at_the_first_failure(inputs: Inputs, one: str, large: str) -> None:
    result = inputs.run(inputs.cluster(nodes=4), f"multi-match allocate {one} {large} {one}", "list")
    assert result.values("JOBID") == ["1", "2"]
    assert result.lines()[-1].startswith("INFO: 1, ALLOCATED, 0, ")


def test_multi_match_continues_after_a_missing_file(inputs: Inputs, one: str) -> None:
    result = inputs.run(inputs.cluster(), f"multi-match allocate {one} nowhere {one}")
    assert result.values("JOBID") == ["1", "2"]
    assert result.err == "ERROR: can't open nowhere\n"


def test_an_update_sets_the_next_job_number(inputs: Inputs, one: str) -> None:
    rset = inputs.rset("r.json", "0", "node0", core="0")
    result = inputs.run(
        inputs.cluster(), f"update allocate rv1exec {rset} 7 0 60", f"match allocate {one}", "stat"
    )
    assert result.values("JOBID") == ["7", "8"]
    stats = result.lines()[-4:]
    assert stats[0] == "INFO: Num. of Jobs Matched: 2"
    assert "1.79769e+308" not in stats[1]


def test_matches_do_not_count_in_the_match_times(inputs: Inputs, one: str) -> None:
    result = inputs.run(inputs.cluster(), f"match allocate {one}", "stat")
    assert result.lines()[-4:] == [
        "INFO: Num. of Jobs Matched: 1",
        "INFO: Min. Match Time: 1.79769e+308",
        "INFO: Max. Match Time: 0",
        "INFO: Avg. Match Time: 0",
    ]


def test_rv1_writes_the_queue_of_a_job_and_keeps_it_for_later_jobs(inputs: Inputs, one: str) -> None:
    queued = inputs.job("queued.json", slot(of("core")), queue="batch")
    commands = [f"match allocate {one}", f"match allocate {queued}", f"match allocate {one}"]
    result = inputs.run([*inputs.cluster(nodes=3), "-F", "rv1"], *commands)
    sets = [line for line in result.lines() if line.startswith("{")]
    ends = [line.endswith('"attributes": {"system": {"scheduler": {"queue": "batch"}}}}') for line in sets]
    assert ends == [False, True, True]


# Errors


@pytest.mark.parametrize(
    "command",
    [
        "match allocate",
        "match allocate a b",
        "multi-match allocate a",
        "update allocate jgf a 1 0",
        "attach",
        "remove /cluster0",
        "cancel",
        "partial-cancel 1 jgf",
        "set-property /cluster0",
        "get-property",
        "set-status /cluster0",
        "get-status",
        "info",
        "stat now",
        "cat",
    ],
)
def test_a_command_with_the_wrong_number_of_words_is_malformed(inputs: Inputs, command: str) -> None:
    result = inputs.run(inputs.cluster(), command)
    assert (result.code, result.out, result.err) == (0, "", "ERROR: malformed command\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("match grow x", "ERROR: unknown subcmd grow"),
        ("match allocate nowhere", "ERROR: can't open nowhere"),
        ("update grow jgf x 1 0 60", "ERROR: unknown subcmd grow"),
        ("update allocate hwloc x 1 0 60", "ERROR: unsupported reader hwloc"),
        ("partial-cancel 1 hwloc x", "ERROR: unsupported reader hwloc"),
        ("remove /cluster0/node0 maybe", "ERROR: invalid path boolean input "),
        ("remove /cluster0/node9 true", "ERROR: can't remove subgraph "),
        ("cancel 99", "cancel: ERROR: nonexistent job 99"),
        ("info 99", "info: ERROR: nonexistent job 99"),
        ("set-status /cluster0 sideways", "ERROR: unrecognized status"),
        ("find status=sideways", "findfind: invalid criteria: status=sideways."),
    ],
)
def test_an_error_is_reported_and_the_session_continues(inputs: Inputs, command: str, message: str) -> None:
    result = inputs.run(inputs.cluster(), command, "get-status /cluster0")
    assert (result.code, result.out, result.err) == (0, "/cluster0 is up\n", f"{message}\n")


def test_an_update_cannot_reuse_the_number_of_a_job_with_an_allocation(inputs: Inputs, one: str) -> None:
    rset = inputs.rset("r.json", "0", "node0", core="0")
    result = inputs.run(inputs.cluster(), f"match allocate {one}", f"update allocate rv1exec {rset} 1 0 60")
    assert result.values("JOBID") == ["1"]
    assert result.err == "ERROR: existing Jobid \n"


def test_a_partial_cancel_needs_an_allocated_job_and_known_ranks(inputs: Inputs, node: str) -> None:
    here = inputs.rset("here.json", "0", "node0", core="0")
    nowhere = inputs.rset("nowhere.json", "9", "node9", core="0")
    result = inputs.run(
        inputs.cluster(),
        f"match allocate {node}",
        f"match allocate_orelse_reserve {node}",
        f"partial-cancel 9 rv1exec {here}",
        f"partial-cancel 2 rv1exec {here}",
        f"partial-cancel 1 rv1exec {nowhere}",
        f"partial-cancel 1 rv1exec {here} stats",
        "list",
    )
    assert result.err.splitlines() == [
        "ERROR: nonexistent job 9",
        "ERROR: reservations not currently supported by partial cancel",
        "ERROR: error encountered while removing job 1",
    ]
    assert 'INFO: PARTIAL CANCEL PREORDER COUNT="0"' in result.lines()
    states = [line.split(", ")[1] for line in result.lines()[-2:]]
    assert states == ["CANCELED", "RESERVED"]


def test_a_second_root_cannot_be_attached(inputs: Inputs) -> None:
    pond = inputs.write("pond.json", cluster_in_jgf().replace("/cluster0", "/pond0"))
    result = inputs.run(inputs.cluster(), f"attach {pond}", "get-status /pond0")
    root = "failed to add root metadata for containment subsystem. Possible duplicate root"
    assert result.out == "Could not find path /pond0 in resource graph.\n"
    assert result.err == (
        "ERROR: can't attach JGF subgraph \n"
        "ERROR: add_subgraph: ERROR: add subgraph error: Invalid argument\n"
        f"add_subgraph: ERROR: reader returned error: add_graph_metadata: {root}.\n\n\n"
    )


def test_rlite_cannot_represent_a_vertex_without_rank(inputs: Inputs) -> None:
    result = inputs.run([*inputs.cluster(), "-F", "rlite"], "find names=cluster0")
    assert (result.out, result.err) == ("", "find: ERROR: find writer emit: Invalid argument\n")


# Properties and status


def test_properties_are_set_and_shown(inputs: Inputs) -> None:
    path = "/cluster0/node0"
    shown = [f"get-property {path}", f"set-property {path} b=2", f"set-property {path} a=x=y"]
    result = inputs.run(inputs.cluster(), *shown, f"get-property {path}")
    assert result.lines() == [f"No properties were found for {path} (vtx's uniq_id=1).", "a=x=y", "b=2"]


@pytest.mark.parametrize("setting", ["fast", "fast=", "=1"])
def test_a_property_needs_a_name_and_a_value(inputs: Inputs, setting: str) -> None:
    result = inputs.run(inputs.cluster(), f"set-property /cluster0 {setting}")
    assert result.lines() == [
        "Incorrect input format. ",
        "Please use `set-property <resource> PROPERTY=VALUE`.",
    ]


def test_an_unknown_path_is_reported(inputs: Inputs) -> None:
    commands = ["set-property /x a=b", "get-property /x", "set-status /x up", "get-status /x"]
    result = inputs.run(inputs.cluster(), *commands)
    could_not = "Could not find path /x in resource graph."
    assert result.lines() == ["Couldn't find path /x in resource graph.", *[could_not] * 3]


def test_a_vertex_below_a_down_node_reports_up_and_is_not_allocated(inputs: Inputs, one: str) -> None:
    result = inputs.run(
        inputs.cluster(nodes=2),
        "set-status /cluster0/node1 down",
        "get-status /cluster0/node1",
        "get-status /cluster0/node1/core0",
        *[f"match allocate {one}"] * 3,
    )
    assert result.lines()[:2] == ["/cluster0/node1 is down", "/cluster0/node1/core0 is up"]
    assert [line for line in result.tree() if line.startswith("node")] == ["node0[1:s]", "node0[1:s]"]


def test_find_shows_the_usage_of_filter_types_by_all_jobs_or_one_job(inputs: Inputs, one: str) -> None:
    result = inputs.run(
        [*inputs.cluster(nodes=2), "-F", "jgf"],
        f"match allocate {one}",
        f"match allocate {one}",
        "find names=cluster0 and agfilter=true",
        "find agfilter=true and jobid-tag=1",
    )
    assert '"agfilter": {"core": "used:2, total:4", "node": "used:0, total:2"}' in result.lines()[-8]
    assert '"agfilter": {"core": "used:1, total:4", "node": "used:0, total:2"}' in result.lines()[-4]


# Stored weights under `first`


def test_first_spreads_small_jobs_and_keeps_their_weights_after_a_cancel(inputs: Inputs, one: str) -> None:
    match = f"match allocate {one}"
    result = inputs.run(inputs.cluster(nodes=3), match, match, "cancel 1", "cancel 2", match, match, match)
    nodes = [line for line in result.tree() if line.startswith("node")]
    # Without stored weights the third job would use node2 again; after it, all weights are equal.
    assert nodes == ["node2[1:s]", "node1[1:s]", "node0[1:s]", "node2[1:s]", "node2[1:s]"]


# Start-up and exit codes


@pytest.mark.parametrize(
    "argv",
    [
        ["--nonsense"],
        ["-L", "GRAPH", "-f", "yaml"],
        ["-L", "GRAPH", "-F", "yaml"],
        ["-L", "GRAPH", "-P", "best"],
        ["-L", "GRAPH", "-P", "policy=low set_stop_on_1_matches=true"],
        ["-L", "GRAPH", "-T", "wild"],
        ["-L", "GRAPH", "-p", "core"],
        ["-L", "GRAPH", "-g", "png"],
        ["-L", "GRAPH", "more"],
        ["-L", "nowhere.json"],
        ["-L", "FOLDER"],
        [],
    ],
    ids=" ".join,
)
def test_invalid_options_are_explained_and_exit_with_1(inputs: Inputs, argv: list[str]) -> None:
    graph = inputs.write("graph.json", cluster_in_jgf())
    words = {"GRAPH": graph, "FOLDER": str(inputs.folder)}
    result = inputs.run([words.get(word, word) for word in argv], "help")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(("penstock resource-query: ", ": Runtime error"))
    assert len(result.err.splitlines()) <= 3


def test_help_exits_with_0(inputs: Inputs) -> None:
    result = inputs.run(["-h"])
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("usage: penstock resource-query")


def test_an_unreadable_graph_is_a_runtime_error_with_exit_code_1(inputs: Inputs) -> None:
    result = inputs.run(["-f", "jgf", "-L", inputs.write("graph.json", "{}")], "help")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(": Runtime error: ")


def test_an_unwritable_test_output_exits_with_1(inputs: Inputs) -> None:
    result = inputs.run([*inputs.cluster(), "-t", str(inputs.folder)], "help")
    assert (result.code, result.out) == (1, "")


def test_elapse_time_prints_statistics_of_the_loaded_graph(inputs: Inputs, one: str) -> None:
    result = inputs.run([*inputs.cluster(nodes=2), "-e"], f"match allocate {one}")
    lines = result.lines()
    assert lines[0].startswith("INFO: Graph Load Time: ")
    assert lines[1:9] == [
        "INFO: Vertex Count: 7",
        "INFO: Edge Count: 6",
        "INFO: by_type Key-Value Pairs: 3",
        "INFO: by_name Key-Value Pairs: 5",
        "INFO: by_path Key-Value Pairs: 7",
        "INFO: number of vertices with rank -1: 1",
        "INFO: number of vertices with rank 0: 3",
        "INFO: number of vertices with rank 1: 3",
    ]
    assert [line.partition("=")[0] for line in lines[-4:-1]] == [
        "INFO: ELAPSE",
        "INFO: PREORDER VISIT COUNT",
        "INFO: POSTORDER VISIT COUNT",
    ]


def on_a_terminal(argv: list[str]) -> str:
    """The output of a session on a terminal after the input `quit`."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [PENSTOCK, "resource-query", *argv], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as running:
        os.close(theirs)
        os.write(ours, b"quit\n")
        written = b""
        while select.select([ours], [], [], TIMEOUT_S)[0]:
            try:
                written += os.read(ours, 4096)
            except OSError:  # The process closed its end and all output is read.
                break
        assert running.wait(TIMEOUT_S) == 0
    os.close(ours)
    return written.decode()


def test_the_prompt_appears_only_on_a_terminal(inputs: Inputs) -> None:
    graph = inputs.cluster()
    assert "resource-query> " in on_a_terminal(graph)
    assert "resource-query> " not in on_a_terminal([*graph, "-d"])
    assert "resource-query> " not in inputs.run(graph, "list").out


def test_the_start_up_cpu_time_is_recorded(
    inputs: Inputs, record_property: Callable[[str, object], None]
) -> None:
    """Reports the value in `pytest -rP` and the XML report; a loaded machine must not fail the test."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([PENSTOCK, "resource-query", *inputs.cluster()], input=b"quit\n", check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_ms = 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    record_property("start_cpu_ms", round(cpu_ms))
    sys.stdout.write(f"start-up of resource-query on a small graph: {cpu_ms:.0f} ms of CPU\n")


def test_an_update_from_r_prints_every_named_node_as_exclusive(inputs: Inputs) -> None:
    half = inputs.rset("half.json", "0", "node0", core="0")
    rest = inputs.rset("rest.json", "0", "node0", core="1")
    result = inputs.run(
        inputs.cluster(nodes=2),
        f"update allocate rv1exec {half} 1 0 60",
        f"update allocate rv1exec {rest} 2 0 60",
    )
    drawn = [line for line in result.tree() if line.startswith("node")]
    assert drawn == ["node0[1:x]", "node0[1:x]"]

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from penstock.cli.cells import aligned, cell_width, cut_cells, wrap_cells
from penstock.cli.eventlogs import EventLines
from penstock.cli.fields import HEADINGS, PRESETS, job_field
from penstock.cli.formats import parse_format
from penstock.cli.gantt import ASCII_FILLS, draw
from penstock.cli.svg import timeline_svg
from penstock.cli.waiting import exit_code
from penstock.errors import BadRequest
from tests.web.canned import DONE, EVENTS, FAILED, NOW, RUNNING, TIMELINE, WAITING, job


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    time.tzset()


def table(form: str, *jobs: dict[str, object], header: bool = True) -> list[str]:
    lines = parse_format(form, HEADINGS).lines(
        jobs, lambda row, name: job_field(row, name, NOW), header=header
    )
    return ["".join(pieces) for pieces in lines]


def test_the_default_table_is_that_of_flux() -> None:
    assert table(PRESETS["default"], WAITING, RUNNING) == [
        "       JOBID USER     NAME       ST NTASKS NNODES     TIME INFO",
        "    ƒTSfi3Sf alice    sim-longn+  S      8      -       2h eta:13.25m",
        "     ƒSZYcoq alice    hostname    R      4      2   5.217s node[0-1]",
    ]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("{id.dec}", "1006632960000"),
        ("{id.hex} {id.kvs}", "0xea60000000 job.0000.00ea.6000.0000"),
        ("{name:.3}|{name:<4.4+}|{name:>14}|", "sim|sim+|  sim-longname|"),
        ("{t_submit!D}", "2023-11-14T22:11:40"),
        ("{t_submit!d:%b%d %R::>12}|", " Nov14 22:11|"),
        ("{t_submit!d}", "2023-11-14T22:11:40"),
        ("{duration!F} {duration!H}", "2h 2:00:00"),
        ("{t_run!D:h} {nnodes:h} {result:h}", "- - -"),
        ("{t_submit:.1f}", "1699999900.0"),
        ("[{queue:<3}]", "[   ]"),
        ("{sched.t_estimate!D} {sched.jobs_ahead}", "2023-11-14T22:26:35 1"),
    ],
)
def test_conversions_and_widths(form: str, expected: str) -> None:
    assert table(form, WAITING, header=False) == [expected]


def test_columns_that_are_empty_everywhere_drop_and_others_widen() -> None:
    long = job(1, "x", "RUN", owner="a-very-long-user")
    assert table("{id.f58:<4} ?:{queue:<8.8} +:{username:<4} {ntasks}", long) == [
        "JOBID USER             NTASKS",
        "ƒ2   a-very-long-user 4",
    ]
    assert "QUEUE" in table(PRESETS["default"], job(1, "x", "RUN", queue="batch"))[0]


@pytest.mark.parametrize("form", ["{", "{nosuch}", "text", "{name!Z}", "{name:x}", "{name:<99999}"])
def test_invalid_formats_are_refused(form: str) -> None:
    with pytest.raises(BadRequest, match="-o"):
        parse_format(form, HEADINGS)


def test_every_preset_can_print_every_kind_of_job() -> None:
    for form in PRESETS.values():
        assert len(table(form, WAITING, RUNNING, DONE, FAILED)) == 5


def test_control_characters_of_a_name_do_not_reach_the_terminal() -> None:
    assert table("{name}", job(1, "a\x1b[2Jb\n", "RUN"), header=False) == ["a?[2Jb?"]


@pytest.mark.parametrize(
    ("changes", "info"),
    [
        ({"urgency": 0, "priority": 0}, "held"),
        ({"priority": 0}, "priority-hold"),
        ({"forecast": {"start_at": NOW - 1}}, "eta:now"),
        ({"state": "PRIORITY"}, "priority-wait"),
        (
            {"state": "DEPEND", "dependencies": ["after-success=ƒ1", "singleton"]},
            "depends:after-success=ƒ1,singleton",
        ),
        ({"state": "DEPEND", "dependencies": [f"begin-time={NOW + 86400:.3f}"]}, "begin@Nov15-22:13:20"),
    ],
)
def test_info_of_a_pending_job(changes: dict[str, object], info: str) -> None:
    assert job_field({**job(1, "x", "SCHED"), **changes}, "contextual_info", NOW) == info


def ended(result: str, status: int | None, kind: str = "", note: str = "") -> dict[str, object]:
    exception = {"occurred": bool(kind), "type": kind, "severity": 0 if kind else None, "note": note}
    return job(1, "x", "INACTIVE", result=result, waitstatus=status, exception=exception)


@pytest.mark.parametrize(
    ("found", "code", "reason"),
    [
        (ended("COMPLETED", 0), 0, "Exit 0"),
        (ended("FAILED", 3 << 8), 3, "Exit 3"),
        (ended("FAILED", 127 << 8), 127, "command not found"),
        (ended("FAILED", 137 << 8), 137, "Killed"),
        (ended("FAILED", 11), 139, "Segmentation fault"),
        (ended("CANCELED", 143 << 8, "cancel", "no more"), 143, "Canceled: no more"),
        (ended("CANCELED", None, "cancel"), 1, "Canceled"),
        (ended("TIMEOUT", 142 << 8, "timeout"), 142, "Timeout"),
        (ended("FAILED", 0, "exec"), 1, "Exit 0"),
        (ended("FAILED", None, "dependency", "never"), 1, "Exception: type=dependency note=never"),
    ],
)
def test_inactive_reasons_match_flux(found: dict[str, object], code: int, reason: str) -> None:
    assert exit_code(found) == code
    assert job_field(found, "inactive_reason", NOW) == reason


def test_eventlogs_in_every_format() -> None:
    def lines(**options: object) -> list[str]:
        writer = EventLines(**options)  # type: ignore[arg-type]
        return [writer.line(event) for event in EVENTS]

    assert lines()[0] == "1700000000.073045 submit userid=1000 urgency=16 flags=0 version=1"
    assert lines()[2] == '1700000005.330000 release ranks="all" final=true'
    assert lines(time_format="human") == [
        "[Nov14 22:13] submit userid=1000 urgency=16 flags=0 version=1",
        "[  +0.013265] validate",
        '[  +5.256955] release ranks="all" final=true',
        "[Nov14 22:14] clean",
    ]
    assert lines(time_format="offset")[1] == "0.013265 validate"
    assert lines(time_format="iso")[1] == "2023-11-14T22:13:20.086310Z validate"
    assert lines(as_json=True)[3] == '{"timestamp":1700000065.5,"name":"clean","context":{}}'


@pytest.mark.parametrize("columns", [40, 80, 100, 160])
def test_the_timeline_fits_its_width_and_distinguishes_states(columns: int) -> None:
    picture = draw(TIMELINE, columns, ASCII_FILLS)
    assert max(map(len, picture.lines)) <= columns
    text = "\n".join(picture.lines)
    for part in ("A.", "C##", "D==", "E--", "B!!", "now"):
        assert part in text
    for line, bars in zip(picture.lines, picture.bars, strict=True):
        for bar in bars:
            assert set(line[bar.start + 1 : bar.end]) <= {ASCII_FILLS[bar.kind]}


def test_a_node_with_too_many_jobs_counts_the_rest() -> None:
    spans = [
        {"job": f"ƒ{n}", "name": "x", "from": NOW, "to": NOW + 60, "kind": "running", "cores": 1}
        for n in range(2, 12)
    ]
    document = {**TIMELINE, "nodes": [{"name": "n", "cores": 10, "spans": spans}]}
    assert "... and 4 more" in "\n".join(draw(document, 80, ASCII_FILLS).lines)


def test_the_svg_image_is_well_formed_and_escapes_names() -> None:
    from xml.etree import ElementTree

    spans = [{"job": "ƒ2", "name": '<&">', "from": NOW, "to": None, "kind": "running", "cores": 1}]
    document = {**TIMELINE, "nodes": [*TIMELINE["nodes"], {"name": "n<", "cores": 1, "spans": spans}]}
    root = ElementTree.fromstring(timeline_svg(document))
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 7
    assert any('<&">' in text for text in titles)


WIDE = "模拟仿真计算任务名很长"


def test_columns_are_aligned_by_what_a_terminal_shows() -> None:
    table = parse_format("{name:<10.10+}|{state:>4}", {"name": "NAME", "state": "ST"})
    rows = [WIDE, "e\u0301te\u0301", "🚀 go", "plain-and-long", "ok"]
    lines = ["".join(line) for line in table.lines(rows, lambda row, field: row if field == "name" else "R")]
    # The width is taken from a library of its own, which terminals agree with.
    assert {cell_len(line.partition("|")[0]) for line in lines} == {10}
    assert lines[1:3] == ["模拟仿真+ |   R", "e\u0301te\u0301       |   R"]


@given(st.text(alphabet=st.sampled_from("aé模🚀\u0301 ƒ"), max_size=60), st.integers(2, 20))
def test_cut_and_wrapped_text_fits_and_loses_nothing(text: str, width: int) -> None:
    assert cell_width(cut_cells(text, width, "+")) <= width
    assert cell_width(aligned(cut_cells(text, width), ">", width)) == width
    lines = wrap_cells(text, width)
    assert all(cell_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")

"""The documents say what is true: commands are run, Python examples too, and paths must exist."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock.engine
from penstock.cli.main import COMMANDS as COMMAND_TABLE
from penstock.web.routes import ENDPOINTS

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
TOP_LEVEL = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS = [*TOP_LEVEL, *GUIDES]

COMMAND_TIMEOUT_S = 60
ANY_LINES = "..."
ANY_TEXT = "…"
FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"(?:src|docs|tests|examples|bench|\.ci|\.github)/[\w./-]*|(?:\w+/)+\w+\.py|[A-Z]+\.md")
HOST = re.compile(r"https?://|\b[a-z0-9-]+\.(?:org|io|com|net|dev)\b", re.IGNORECASE)
KEY = re.compile(
    r"\b(?:penstock\.dev|fluence\.flux-framework\.org|example\.com|[a-z0-9.-]*k8s\.io)/"
)  # of labels; no hosts


@dataclass(frozen=True)
class Block:
    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class ProcessCommand:
    place: str
    script: str
    expected: list[str]


def blocks_in(document: Path, language: str) -> list[Block]:
    text = document.read_text("utf-8")
    return [
        Block(document, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in FENCE.finditer(text)
        if found[1] == language
    ]


def commands_in(block: Block) -> list[ProcessCommand]:
    """`$ ` begins a command, `> ` goes on with it, and the lines up to the next one are its output."""
    commands: list[tuple[list[str], list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(([line[2:]], []))
        elif line.startswith("> ") and commands and not commands[-1][1]:
            commands[-1][0].append(line[2:])
        else:
            assert commands, f"{block}: output before any command"
            commands[-1][1].append(line)
    return [ProcessCommand(str(block), "\n".join(script), expected) for script, expected in commands]


def agrees(expected: list[str], found: list[str]) -> bool:
    """Line by line; `...` alone on a line stands for any number of lines."""
    if not expected:
        return not found
    if expected[0] == ANY_LINES:
        return any(agrees(expected[1:], found[skipped:]) for skipped in range(len(found) + 1))
    return bool(found) and line_agrees(expected[0], found[0]) and agrees(expected[1:], found[1:])


def line_agrees(expected: str, found: str) -> bool:
    """`…` stands for any text within a line."""
    pattern = ".*".join(re.escape(part) for part in expected.rstrip().split(ANY_TEXT))
    return re.fullmatch(pattern, found.rstrip()) is not None


def lines_of(text: str) -> list[str]:
    """Empty lines at the end are not compared: a fence would look odd with them."""
    return text.rstrip("\n").split("\n") if text.strip("\n") else []


def is_story(document: Path) -> bool:
    """Whether its commands belong together, because they work on an instance that it starts."""
    return any("$ penstock start" in block.text for block in blocks_in(document, "console"))


COMMANDS = [
    command
    for document in DOCUMENTS
    if not is_story(document)
    for block in blocks_in(document, "console")
    for command in commands_in(block)
]
STORIES = [document for document in DOCUMENTS if is_story(document)]
EXAMPLES = [document for document in DOCUMENTS if blocks_in(document, "python")]


@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: f"{command.place} {command.script.splitlines()[0]}"
)
def test_a_command_prints_what_the_document_says(command: ProcessCommand) -> None:
    if command.script.startswith("make ") and command.script != "make help":
        pytest.skip("a make target sets up an environment, or runs these tests again")
    run_command(command, {})


@pytest.mark.parametrize("document", STORIES, ids=lambda document: str(document.relative_to(ROOT)))
def test_the_commands_of_a_story_print_what_it_says_one_after_the_other(document: Path) -> None:
    base = tempfile.mkdtemp(prefix="penstock-")
    os.chmod(base, 0o711)
    state = {"PENSTOCK_STATE": f"{base}/state", "PENSTOCK_RUNTIME": base}
    try:
        for block in blocks_in(document, "console"):
            for command in commands_in(block):
                run_command(command, state)
    finally:
        environment = {**os.environ, **state}
        subprocess.run([BIN / "penstock", "stop"], env=environment, capture_output=True, check=False)
        shutil.rmtree(base)


def run_command(command: ProcessCommand, more: dict[str, str]) -> None:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", **more}
    for inherited in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # Set when the tests themselves run under make.
        environment.pop(inherited, None)
    done = subprocess.run(
        ["bash", "-c", command.script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    expected = lines_of("\n".join(command.expected))
    assert agrees(expected, lines_of(done.stdout)), f"{command.place} printed:\n{done.stdout}"


@pytest.mark.parametrize("document", EXAMPLES, ids=lambda document: str(document.relative_to(ROOT)))
def test_the_python_examples_of_a_document_run_in_order(document: Path) -> None:
    """All blocks of a document share their names, as a reader would type them one after the other."""
    names: dict[str, object] = {}
    for block in blocks_in(document, "python"):
        if ">>>" not in block.text:
            exec(compile(block.text, str(block), "exec"), names)
            continue
        example = doctest.DocTestParser().get_doctest(
            block.text, names, str(block), str(document), block.line
        )
        told: list[str] = []
        result = doctest.DocTestRunner().run(example, out=told.append, clear_globs=False)
        names.update(example.globs)
        assert result.failed == 0, "".join(told)


def test_the_example_in_the_engine_runs() -> None:
    told: list[str] = []
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(penstock.engine, "penstock.engine"):
        runner.run(example, out=told.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(told)


def paths_in(document: Path) -> list[str]:
    text = FENCE.sub("", document.read_text("utf-8"))
    return [found for found in IN_BACKTICKS.findall(text) if PATH.fullmatch(found)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_path_that_a_document_names_exists(document: Path) -> None:
    gone = [
        path
        for path in paths_in(document)
        if not (ROOT / path).exists() and not (ROOT / "src" / "penstock" / path).exists()
    ]
    assert not gone


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text("utf-8"))
    targets = [target for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_architecture_names_files_at_all() -> None:
    """Guards the two tests above: a pattern that finds nothing would pass them."""
    assert len(paths_in(ROOT / "ARCHITECTURE.md")) > 20
    assert LINK.findall((ROOT / "docs" / "index.md").read_text("utf-8"))


def test_every_guide_can_be_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    linked = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    assert [guide for guide in GUIDES if guide.name != "index.md" and guide not in linked] == []


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "requirements.lock", ROOT / "Makefile"], ids=lambda d: d.name
)
def test_no_document_names_a_registry_or_any_other_host(document: Path) -> None:
    """Where packages and images come from is the business of whoever installs them."""
    assert HOST.findall(KEY.sub("", document.read_text("utf-8"))) == []


def test_the_reference_names_every_call_of_the_api() -> None:
    reference = (ROOT / "docs" / "reference" / "http-api.md").read_text("utf-8")
    calls = [f"`{endpoint.method} {endpoint.path}`" for endpoint in ENDPOINTS]
    assert [call for call in calls if call not in reference] == []


def test_the_reference_names_every_command() -> None:
    reference = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    assert [name for name in COMMAND_TABLE if f"`penstock {name}" not in reference] == []


def test_the_reference_names_everything_that_the_engine_exports() -> None:
    reference = (ROOT / "docs" / "reference" / "engine-api.md").read_text("utf-8")
    named = set(re.findall(r"\w+", " ".join(IN_BACKTICKS.findall(reference))))
    methods = {name for name in vars(penstock.engine.Engine) if not name.startswith("_")}
    assert sorted((set(penstock.engine.__all__) | methods) - named) == []


@pytest.mark.parametrize(
    ("expected", "found", "is_same"),
    [
        (["a"], ["a"], True),
        (["a"], ["a", "b"], False),
        (["a", "..."], ["a", "b"], True),
        (["...", "b"], ["b"], True),
        (["...", "b", "...", "d"], ["a", "b", "c", "d"], True),
        (["...", "d", "...", "b"], ["a", "b", "c", "d"], False),
        ([], ["a"], False),
    ],
)
def test_three_dots_stand_for_any_lines(expected: list[str], found: list[str], is_same: bool) -> None:
    assert agrees(expected, found) is is_same

"""Identifiers in `src` use the words of the field: no name that the vocabulary replaced comes back.

The lists are the left column of the rename table. A *word* is rejected as a part of any identifier (`maker`
in `maker_of`). A *name* is rejected only as a whole, and only in the packages that used it, because it may be
the right word elsewhere: a planner has levels, a user has a home directory.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "penstock"
MODULES = sorted(SOURCE.rglob("*.py"))
EVERYWHERE = ""

REPLACED_WORDS = """
    apart belonging fulfil guardian habitat heir maker makers mirror office relaxation salvage seat seats
    sight surroundings teller telling tidings unseat wish wishes
"""
REPLACED_NAMES = {
    EVERYWHERE: """
        Actions Answers Core Hold HoldGone HoldSet Holds Observed Part Parts Pointer Rooms Seat Settled
        Sight Tell Turns Wish Work WorkGone WorkSet Works World
        amounts assemble_s consult detail_of disturb given_up hold_gone hold_of hold_set is_owed is_parked
        lost_s make_anew notable parked put_back reconsider remove_hold reprime set_hold take_in tell to_lay
        told turn turns whole_s work works world _Limit
    """,
    "agent": "Home",
    "app": "assemble levels lost places whole",
    "backends": "Link asks kinds levels places",
    "engine": "Job Step elastic lift matching",
    "instance": "_live _lose _rang life",
    "podspec": "Level kinds levels",
    "protocol": "Level holds kind levels seats",
    "sched": "again counting late lately levels passes walk Walk",
    "store": "Link Step",
}
REPLACED_MODULES = {
    EVERYWHERE: "drivers habitat places world",
    "agent": "home salvage",
    "app": "graph_reading habitat",
    "backends": "acting apart asks givenup groups makers mirror ports rooms seeing telling works world",
    "cli": "judgement memory screen sets ties tour",
    "devcluster": "guardian parts pointers",
    "engine": "elastic holds marks relaxation shapes state",
    "instance": "turns",
    "podspec": "apart asks groups",
    "protocol": "port wishes",
    "sched": "ask core membership nearest order passes requests",
    "store": "account faults link opening placed",
    "web": "active answers refusals service views",
}
REPLACED_REASONS = ("GroupBroken", "GroupGivenUp", "Misunderstood")


def package_of(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def replaced_in(package: str, table: dict[str, str]) -> set[str]:
    return {*table[EVERYWHERE].split(), *table.get(package, "").split()}


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def replaced_names(package: str, source: str) -> Iterator[tuple[int, str]]:
    """The replaced names in a module, each with its line."""
    names, words = replaced_in(package, REPLACED_NAMES), set(REPLACED_WORDS.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and (token.string in names or words_of(token.string) & words):
            yield token.start[0], token.string


@pytest.mark.parametrize(
    ("package", "source", "found"),
    [
        ("cli", "wish = 1", ["wish"]),
        ("cli", "def maker_of(pod): ...", ["maker_of"]),
        ("app", "class KubeHabitat: ...", ["KubeHabitat"]),
        ("cli", "x.told['wish']", ["told"]),
        ("cli", "intellect = telltale = makers_x", ["makers_x"]),
        ("cli", "# a wish\nworkload = 'maker'", []),
        ("protocol", "levels = 1", ["levels"]),
        ("engine", "levels = 1", []),
    ],
)
def test_a_replaced_name_is_found(package: str, source: str, found: list[str]) -> None:
    assert [name for _, name in replaced_names(package, source)] == found


def test_no_identifier_is_a_replaced_name() -> None:
    found = []
    for module in MODULES:
        path = module.relative_to(SOURCE).as_posix()
        names = replaced_names(package_of(path), module.read_text())
        found += [f"{path}:{line} {name}" for line, name in names]
    assert found == []


def test_no_module_or_package_has_a_replaced_name() -> None:
    found = []
    for module in MODULES:
        path = module.relative_to(SOURCE).as_posix()
        names = {part.removesuffix(".py") for part in path.split("/")}
        if names & replaced_in(package_of(path), REPLACED_MODULES):
            found.append(path)
    assert found == []


def test_no_condition_has_a_replaced_reason() -> None:
    texts = {module.name: module.read_text() for module in MODULES}
    assert [name for name, text in texts.items() if any(reason in text for reason in REPLACED_REASONS)] == []


def test_every_public_class_name_has_one_meaning() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(module.relative_to(SOURCE).as_posix())
    assert {name: modules for name, modules in defined.items() if len(modules) > 1} == {}

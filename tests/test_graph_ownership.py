"""The graph of an engine is changed by the engine alone: everything else would leave its totals wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock
from penstock.engine import Graph, Vertex

SOURCES = Path(penstock.__file__).parent
# The engine itself, and readers, which build a graph before an engine has it or are run by `Engine.attach`.
OWNERS = ("engine/", "fluxion/readers/")
GRAPH_CHANGES = {
    name for name in vars(Graph) if name.startswith(("add_", "remove_", "set_")) or name == "link"
}
VERTICES = ("vertex", "node", "root", "parent", "child", "pool", "top")
VERTEX_CHANGES = {"set_property", "remove_property"}
# Where a graph is made for an engine that does not exist yet, or inside `Engine.attach`.
ALLOWED = {
    ("sched/cluster.py", "add_root"),
    ("fluxion/attach.py", "unit"),
    ("cli/resource_query.py", "unit"),
}


def changes_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Calls of what changes a graph, and assignments to an attribute of something called a vertex."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_engine = ast.unparse(node.func.value).endswith("engine")
            if node.func.attr in GRAPH_CHANGES | VERTEX_CHANGES and not is_engine:
                yield node.func.attr, node.lineno
        for target in _targets(node):
            owner = ast.unparse(target.value)
            if target.attr in Vertex.__slots__ and owner.endswith(VERTICES):
                yield target.attr, target.lineno


def _targets(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns, deletes, or changes an element of."""
    pending: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        pending = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        pending = [node.target]
    while pending:
        target = pending.pop()
        if isinstance(target, ast.Tuple | ast.List):
            pending.extend(target.elts)
        elif isinstance(target, ast.Subscript):
            pending.append(target.value)
        elif isinstance(target, ast.Attribute):
            yield target


def test_nothing_but_the_engine_changes_its_graph() -> None:
    assert {"add_child", "add_root", "add_tree", "add_unlinked", "remove_subtree", "link"} <= GRAPH_CHANGES
    found = [
        (path, name, line)
        for file in sorted(SOURCES.rglob("*.py"))
        if not (path := file.relative_to(SOURCES).as_posix()).startswith(OWNERS)
        for name, line in changes_in(ast.parse(file.read_text()))
        if (path, name) not in ALLOWED
    ]
    assert not found, "use the methods of Engine"


def test_a_change_is_found() -> None:
    lines = [
        "known.vertex.up = False",
        "node.size += 1",
        "graph.add_child(p, spec)",
        "engine.set_property(v, k, w)",
    ]
    text = "\n".join(lines)
    assert sorted(changes_in(ast.parse(text))) == [("add_child", 3), ("size", 2), ("up", 1)]

"""Two engines with the same history, one with the node index and one without, must give the same answers.

`Twins` draws every operation of an engine at random and compares what the two return, and from time to time
everything that they have booked. `python -m tests.property.index_histories --operations 1000000` runs until
that many operations, and prints the seed and the number of the operation with the first difference.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable
from dataclasses import replace

from penstock.engine import (
    Allocation,
    AllocationKind,
    Engine,
    Graph,
    Group,
    MatchOp,
    Never,
    NodeOrder,
    NotNow,
    Placement,
    Preference,
    Request,
    Vertex,
    VertexSpec,
    VertexTree,
)
from penstock.engine.booking import VertexClaim
from penstock.errors import PenstockError
from penstock.fluxion.order import FluxionOrder
from penstock.model.constraint import (
    CORDON_KEY,
    TAINTS_PROPERTY,
    Constraint,
    Hostlist,
    Not,
    Properties,
    Taint,
    Tolerates,
    encode_taints,
)
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import Count, Resource

POLICIES = (
    *("first", "firstnodex", "high", "low", "hinode", "lonode", "hinodex", "lonodex", "pack", "spread"),
    *("policy=low stop_on_1_matches=true", "policy=high node_centric=true node_exclusive=false"),
)
_PORT = ExclusionKey("node", "port 80")
_RULE = (ExclusionKey("node", "rule", "carrier"), ExclusionKey("node", "rule", "selected"))
_RACK = ExclusionKey("rack", "one per rack")
_KEYS = (
    ((_PORT,), (_PORT,)),
    ((_RULE[0],), (_RULE[1],)),
    ((_RULE[1],), (_RULE[0],)),
    ((_RACK,), (_RACK,)),
    ((_PORT, _RACK), (_PORT, _RACK)),
)
_CONSTRAINTS: tuple[Constraint, ...] = (
    Properties(("fast",)),
    Properties(("^fast",)),
    Properties(("big", "fast")),
    Not((Hostlist(frozenset({"n0", "n1", "n2"})),)),
    Hostlist(frozenset({"n1", "n3", "n4", "n5", "n8"})),
    *[Tolerates(())] * 3,
)
_TAINTS = (
    encode_taints([Taint(CORDON_KEY, "", "NoSchedule")]),
    encode_taints([Taint("dedicated", "", "NoSchedule")]),
    encode_taints([Taint("dedicated", "", "NoSchedule"), Taint(CORDON_KEY, "", "NoSchedule")]),
)


def _resource(kind: str, count: int, *inner: Resource, exclusive: bool | None = None) -> Resource:
    return Resource(kind, Count(count, count), with_=inner, exclusive=exclusive, label="x")


class Twins:
    """An engine with an index and one without, driven alike."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        policy = self.chance.choice(POLICIES)
        is_fluxion = self.chance.random() < 0.3
        self.has_pools = self.chance.random() < 0.6
        self.sockets = 0 if self.has_pools else self.chance.choice([0, 0, 2])
        self.has_taints = self.chance.random() < 0.2
        shape = self.chance.randrange(1 << 30)
        filters = self.chance.choice(["ALL:core,ALL:node", "ALL:core,ALL:cpu,ALL:node", "ALL:node", ""])
        self.engines = tuple(
            Engine(
                self._graph(random.Random(shape)),
                policy,
                filters,
                order=FluxionOrder() if is_fluxion else None,
                index=index,
            )
            for index in (True, False)
        )
        self.is_fluxion = is_fluxion
        self.now = 0
        self.job = 0
        self.operations = 0
        self.requests: dict[int, Request] = {}
        self.nodes_made = 100

    def _graph(self, chance: random.Random) -> Graph:
        graph = Graph()
        root = graph.add_root(VertexSpec("cluster", 0, basename="cluster"))
        racks = [
            graph.add_child(root, VertexSpec("rack", number))
            for number in range(chance.choice([0, 0, 1, 2, 3]))
        ]
        count = chance.choice([2, 5, 9, 14, 30])
        ids = list(range(count))
        if chance.random() < 0.5:
            chance.shuffle(ids)
        if chance.random() < 0.2:
            ids = [number // 2 for number in ids]
        for rank, number in enumerate(ids):
            parent = chance.choice(racks) if racks and chance.random() < 0.95 else root
            graph.add_tree(parent, self._node(chance, rank, number))
        if chance.random() < 0.2:
            graph.add_child(root, VertexSpec("storage", 0, size=9, divisible=True))
        if chance.random() < 0.1:
            graph.add_child(root, VertexSpec("memory", 0, size=9))
        return graph

    def _node(self, chance: random.Random, rank: int, number: int) -> VertexTree:
        tags = {name: "" for name in ("fast", "big") if chance.random() < 0.5}
        if self.has_taints and chance.random() < 0.9:
            tags[TAINTS_PROPERTY] = chance.choice(_TAINTS)
        inner: list[VertexTree] = []
        if self.has_pools:
            for kind in ("cpu", "memory", "gpu"):
                if chance.random() < 0.9:
                    size = chance.randrange(1, 12)
                    inner.append(VertexTree(VertexSpec(kind, 0, rank=rank, size=size, divisible=True)))
        cores = [VertexTree(VertexSpec("core", one, rank=rank)) for one in range(chance.randrange(0, 5))]
        pools = [
            VertexTree(VertexSpec("memory", one, rank=rank, size=chance.randrange(1, 4)))
            for one in range(0 if self.has_pools else chance.randrange(0, 3))
        ]
        if self.sockets:
            inner += [
                VertexTree(VertexSpec("socket", place, rank=rank), (*cores, *pools))
                for place in range(self.sockets)
            ]
        else:
            inner += [*cores, *pools]
        spec = VertexSpec(
            "node", number, name=f"n{rank}", rank=rank, properties=tags, up=chance.random() < 0.9
        )
        return VertexTree(spec, tuple(inner))

    # Requests

    def request(self) -> Request:
        chance = self.chance
        groups = tuple(self._group() for _ in range(chance.choice([1, 1, 1, 1, 2, 3])))
        placement = Placement(chance.random() < 0.2, chance.choice(["", "", "", "", "rack", "node"]))
        order = chance.choice([NodeOrder.POLICY, NodeOrder.POLICY, NodeOrder.PACK, NodeOrder.SPREAD])
        if any(group.resources[0].type != "slot" for group in groups):
            order = NodeOrder.POLICY
        return Request(groups, chance.choice([None, 3, 5, 9, 30]), placement, order)

    def _group(self) -> Group:
        chance = self.chance
        constraint = chance.choice(_CONSTRAINTS) if chance.random() < 0.25 else None
        tree = self._tree()
        group = Group((tree,), constraint)
        if tree.type == "slot":
            if chance.random() < 0.2:
                brings, forbids = chance.choice(_KEYS)
                group = replace(group, brings=brings, forbids=forbids)
            if chance.random() < 0.2:
                prefers = tuple(
                    Preference(chance.choice(_CONSTRAINTS), chance.randrange(1, 4))
                    for _ in range(chance.randrange(1, 3))
                )
                group = replace(group, prefers=prefers)
        return group

    def _tree(self) -> Resource:
        chance = self.chance
        alone = chance.choice([None, None, True])
        few = chance.choice([1, 1, 1, 2, 3, 5])
        kinds = chance.sample(["core", "cpu", "memory", "gpu"] if self.has_pools else ["core", "memory"], 2)
        inner = [_resource(kind, chance.randrange(1, 4)) for kind in kinds[: chance.choice([1, 1, 2])]]
        slot = _resource("slot", few, *inner)
        forms = [
            *[slot] * 4,
            _resource("slot", few, _resource("node", 1, exclusive=alone)),
            _resource("slot", few, _resource("node", 1, *inner)),
            _resource("slot", 1, _resource("node", chance.randrange(1, 3))),
            _resource("node", few, _resource("slot", 1, *inner), exclusive=alone),
            _resource("node", few, exclusive=True),
            _resource("rack", 1, _resource("node", 1, slot, exclusive=alone)),
        ]
        if self.sockets:
            forms += [
                _resource("slot", few, _resource("socket", 1, exclusive=alone)),
                _resource("slot", few, _resource("socket", 1, *inner)),
                _resource("node", few, _resource("socket", 1, slot)),
                _resource("socket", few, _resource("slot", 1, *inner)),
            ]
        return chance.choice(forms)

    # Operations

    def step(self) -> None:
        """One operation on both, with the same outcome."""
        name = self.chance.choices(
            [
                *("match", "release", "tick", "extend", "release_slots", "release_vertices", "set_end"),
                *("usage", "no_usage", "status", "property", "resize", "add", "remove", "leaf", "query"),
                *("unbook", "copy", "update", "keys"),
            ],
            [40, 12, 8, 5, 4, 2, 2, 5, 3, 4, 3, 2, 2, 1, 2, 8, 2, 0.2, 1, 1],
        )[0]
        self.operations += 1
        getattr(self, f"_do_{name}")()

    def _both(self, what: object) -> list[object]:
        outcomes: list[object] = []
        for engine in self.engines:
            try:
                outcomes.append(_plain(what(engine)))  # type: ignore[operator]
            except PenstockError as error:
                outcomes.append((type(error).__name__, str(error)))
        assert outcomes[0] == outcomes[1], f"with the index: {outcomes[0]}\nwithout: {outcomes[1]}"
        return outcomes

    def _do_match(self) -> None:
        chance = self.chance
        request, op = self.request(), chance.choice([*MatchOp, *[MatchOp.ALLOCATE] * 4])
        excluded = frozenset(
            node.index for node in self.engines[0].graph.of_type("node") if chance.random() < 0.5
        )
        excluded = excluded if chance.random() < 0.1 else frozenset()
        self.job += 1
        job, is_explained = self.job, chance.random() < 0.2

        def match(engine: Engine) -> object:
            answer = engine.match(job, request, self.now, op, explain=is_explained, excluded_nodes=excluded)
            if (
                self.is_fluxion
                and isinstance(answer, Allocation)
                and answer.kind is not AllocationKind.MATCHED
            ):
                order = engine._order
                assert isinstance(order, FluxionOrder)
                order.note(answer, self.now)
            return answer

        self._both(match)
        self.requests[job] = request

    def _do_query(self) -> None:
        request = self.request()
        start = self.now + self.chance.randrange(1, 12)
        question = self.chance.randrange(4)
        if question == 0:
            self._both(lambda engine: engine.could_ever(request))
        elif question == 1:
            self._both(lambda engine: engine.never(request))
        elif question == 2:
            self._both(lambda engine: [node.name for node in engine.nodes_without_jobs(request) or ()])
        else:
            self._both(lambda engine: engine.reserve(0, request, start, self.now, frozenset(), book=False))

    def _some_job(self) -> int | None:
        jobs = list(self.engines[1].jobs)
        return self.chance.choice(jobs) if jobs else None

    def _do_release(self) -> None:
        job = self._some_job()
        if job is not None:
            self._both(lambda engine: engine.release(job))

    def _do_unbook(self) -> None:
        job = self._some_job()
        if job is not None:
            self._both(lambda engine: engine.rebook_job(engine.unbook_job(job)))

    def _do_copy(self) -> None:
        first, second = (engine.copy() for engine in self.engines)
        self.engines = (first, second)

    def _do_tick(self) -> None:
        self.now += self.chance.choice([1, 1, 2, 4, 10])

    def _do_extend(self) -> None:
        job = self._some_job()
        if job is not None:
            request = self.request()
            self._both(lambda engine: engine.extend(job, request, self.now, explain=False))

    def _do_release_slots(self) -> None:
        job = self._some_job()
        if job is not None:
            numbers = [one for one in range(6) if self.chance.random() < 0.4]
            self._both(lambda engine: engine.release_slots(job, numbers))

    def _do_release_vertices(self) -> None:
        job = self._some_job()
        if job is not None:
            claims = self.engines[1].jobs[job].claims()
            gone = [index for index in sorted(claims) if self.chance.random() < 0.3]
            self._both(
                lambda engine: engine.release_vertices(job, [engine.graph.vertices[index] for index in gone])
            )

    def _do_set_end(self) -> None:
        job = self._some_job()
        if job is not None:
            end = self.chance.choice([None, self.now + 1, self.now + 7, self.now + 20])
            self._both(lambda engine: engine.set_end(job, end))

    def _do_keys(self) -> None:
        job = self._some_job()
        if job is not None:
            brings = self.chance.choice(_KEYS)[0]
            self._both(lambda engine: engine.set_slot_keys(job, 0, brings))

    def _do_update(self) -> None:
        job = self._some_job()
        if job is None:
            return

        def again(engine: Engine) -> object:
            holder = engine.jobs[job]
            claims: list[VertexClaim] = list(holder.claims().values())
            kind, end = holder.kind, self.now + 9
            engine.release(job)
            return engine.update(job, claims, self.now, end, kind, self.now, force=True)

        self._both(again)

    def _node_index(self) -> int:
        return self.chance.choice(self._indexes("node"))

    def _indexes(self, *kinds: str) -> list[int]:
        graph = self.engines[1].graph
        return [vertex.index for kind in kinds for vertex in graph.of_type(kind)]

    def _do_usage(self) -> None:
        chance = self.chance
        at, name = self._node_index(), f"u{chance.randrange(6)}"
        units = {kind: chance.randrange(0, 5) for kind in chance.sample(["core", "cpu", "memory", "gpu"], 2)}
        standing, brings = chance.random() < 0.3, chance.choice([(), (), (_PORT,), (_RULE[1],), (_RACK,)])
        self._both(
            lambda engine: engine.external_usage.set(
                name, engine.graph.vertices[at], units, standing=standing, brings=brings
            )
        )

    def _do_no_usage(self) -> None:
        name = f"u{self.chance.randrange(6)}"
        self._both(lambda engine: engine.external_usage.remove(name))

    def _do_status(self) -> None:
        at = self.chance.choice(self._indexes("node", "node", "rack", "core", "cpu", "socket"))
        up = self.chance.random() < 0.7
        self._both(lambda engine: engine.set_status(engine.graph.vertices[at], up))

    def _do_property(self) -> None:
        at, tag = self._node_index(), self.chance.choice(["fast", "big", TAINTS_PROPERTY])
        value = self.chance.choice(_TAINTS) if tag == TAINTS_PROPERTY else ""
        if self.chance.random() < 0.5:
            self._both(lambda engine: engine.set_property(engine.graph.vertices[at], tag, value))
        else:
            self._both(lambda engine: engine.remove_property(engine.graph.vertices[at], tag))

    def _do_resize(self) -> None:
        pools = self._indexes("cpu", "gpu") if self.has_pools else []
        if pools:
            at, size = self.chance.choice(pools), self.chance.randrange(0, 12)
            self._both(lambda engine: engine.resize(engine.graph.vertices[at], size))

    def _do_add(self) -> None:
        chance = self.chance
        number = chance.choice([self.nodes_made, self.nodes_made, chance.randrange(20)])
        tree = self._node(chance, self.nodes_made, number)
        self.nodes_made += 1
        parent = chance.choice(self._indexes("rack") or self._indexes("cluster"))
        if chance.random() < 0.2:
            tree = VertexTree(VertexSpec("rack", self.nodes_made), (tree,))
            parent = self.engines[1].graph.root.index
        self._both(lambda engine: engine.add(engine.graph.vertices[parent], tree).path())

    def _do_leaf(self) -> None:
        chance = self.chance
        leaves = self._indexes("core", "cpu", "memory")
        if leaves and chance.random() < 0.5:
            at = chance.choice(leaves)
            self._both(lambda engine: engine.remove(engine.graph.vertices[at]))
            return
        at = self._node_index()
        kind = chance.choice(["core", "memory"])
        tree = VertexTree(VertexSpec(kind, chance.randrange(8), size=1 if kind == "core" else 3))
        self._both(lambda engine: engine.add(engine.graph.vertices[at], tree).path())

    def _do_remove(self) -> None:
        nodes = self._indexes("node", "rack")
        if len(nodes) > 2:
            at = self.chance.choice(nodes)
            if self.engines[1].graph.number_of("node") - _nodes_below(self.engines[1].graph.vertices[at]) > 1:
                self._both(lambda engine: engine.remove(engine.graph.vertices[at]))

    def compare(self) -> None:
        """What both have booked."""
        first, second = (
            {job: _plain(engine.allocation(job)) for job in engine.jobs} for engine in self.engines
        )
        assert first == second
        states = [
            {vertex.index: _state(vertex) for vertex in e.graph.vertices.values()} for e in self.engines
        ]
        assert states[0] == states[1]


def _state(vertex: Vertex) -> object:
    """What is booked at a vertex, independent of how it came about."""
    state = vertex.state
    if state is None:
        return None
    plans = [list(plan.changes()) for plan in (state.plan, state.presence)]
    below = {name: list(planner.changes()) for name, planner in state.below.items()}
    bookings = dict(state.bookings)
    return (
        bookings,
        plans,
        below,
        state.live_end_min,
        state.exclusive_bookings,
        state.excess,
        state.excess_below,
    )


def _nodes_below(vertex: Vertex) -> int:
    return int(vertex.type == "node") + sum(_nodes_below(child) for child in vertex.below())


def _plain(outcome: object) -> object:
    """An outcome without references to the vertices of one graph."""
    if isinstance(outcome, Allocation):
        picks = [(one.vertex.path(), one.vertex.index, one.units, one.exclusive) for one in outcome.picks]
        slots = [
            (slot.number, slot.group, [(grant.vertex.path(), grant.units) for grant in slot.grants])
            for slot in outcome.slots
        ]
        return outcome.job, outcome.kind, outcome.start_s, outcome.end_s, picks, slots
    if isinstance(outcome, NotNow):
        return "NotNow", outcome.earliest_s, outcome.reason
    if isinstance(outcome, Never):
        return "Never", outcome.reason
    return outcome


def run(seeds: Iterable[int], steps: int) -> tuple[int, int, int]:
    """Drives one pair per seed. Returns the operations, and how many groups index and walker answered."""
    operations = answered = passed_on = 0
    for seed in seeds:
        twins = Twins(seed)
        try:
            for _ in range(steps):
                twins.step()
            twins.compare()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, operation {twins.operations}: {error}") from error
        operations += twins.operations
        counted = twins.engines[0].answers()
        answered, passed_on = answered + counted.index, passed_on + counted.walker
    return operations, answered, passed_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    done = answered = passed_on = 0
    seed = options.seed
    while done < options.operations:
        more, by_index, by_walker = run([seed], options.steps)
        done, answered, passed_on = done + more, answered + by_index, passed_on + by_walker
        seed += 1
        if seed % 100 == 0:
            sys.stdout.write(f"\r{done} operations, seed {seed}; index {answered}, walker {passed_on}")
            sys.stdout.flush()
    sys.stdout.write(f"\n{done} operations without a difference; index {answered}, walker {passed_on}\n")


if __name__ == "__main__":
    main()

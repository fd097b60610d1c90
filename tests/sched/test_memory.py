"""What jobs take in memory: pending ones little more than their jobspec, ended ones nothing."""

from __future__ import annotations

import gc
import json
import tracemalloc

from penstock.protocol.commands import Cancel, Submission, Submit
from penstock.protocol.facts import Capacity, NodeSet, Snapshot
from penstock.sched.jobspec import payload_of
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings

_JOBS = 400
_VARIABLES = 200


def jobspec_text(number: int, variables: dict[str, object], command: object = "true") -> str:
    """A jobspec that differs from the others in its environment, as those of `submit --cc` do."""
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}
    system = {"duration": 60, "environment": {**variables, "NUMBER": f"{number}"}, "cwd": "/tmp"}
    return json.dumps(
        {
            "version": 1,
            "resources": [slot],
            "tasks": [{"command": [command], "slot": "task", "count": {"per_slot": 1}}],
            "attributes": {"system": system},
        }
    )


def _submit(scheduler: Scheduler, texts: list[str], now: float) -> tuple[int, ...]:
    (reply,) = scheduler.handle([Submit(tuple(Submission(text, "me") for text in texts))], now).replies
    assert reply.error is None, reply.error
    found: object = getattr(reply.value, "ids", reply.value)
    assert isinstance(found, tuple)
    return found


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_jobs_with_a_large_environment_take_little_memory_and_none_when_they_have_ended() -> None:
    scheduler = scheduler_from(Settings(), Recorded(), 0.0)
    scheduler.handle([Snapshot(nodes=(NodeSet("node0", (Capacity("core", 1),)),))], 0.0)
    variables: dict[str, object] = {f"VARIABLE_{number}": "x" * 30 for number in range(_VARIABLES)}
    texts = [jobspec_text(number, variables) for number in range(_JOBS)]
    size = sum(map(len, texts))
    tracemalloc.start()
    try:
        ids = _submit(scheduler, texts, 1.0)  # This fills the caches, too.
        before = _traced()
        ids += _submit(scheduler, texts, 1.0)
        assert _traced() - before < size  # The texts themselves exist already.
        scheduler.handle([Cancel(ids, "")], 2.0)
        assert not scheduler.jobs
        once = _traced()
        scheduler.handle([Cancel(_submit(scheduler, texts, 3.0), "")], 4.0)
        assert _traced() - once < size / 10
    finally:
        tracemalloc.stop()


def test_what_a_task_is_started_with_does_not_depend_on_the_types_in_the_jobspec() -> None:
    payload = payload_of(jobspec_text(1, {"DEBUG": 1}, command=17))
    assert (payload["command"], payload["environment"]) == (["17"], {"DEBUG": "1", "NUMBER": "1"})
    assert payload["name"] == "17"


def test_memory_of_a_jobspec_is_counted_in_mib_unless_it_has_a_unit() -> None:
    scheduler = scheduler_from(Settings(), Recorded(), 0.0)
    capacity = (Capacity("core", 4), Capacity("memory", 4 << 30, divisible=True))
    scheduler.handle([Snapshot(nodes=(NodeSet("node0", capacity),))], 0.0)

    def submit(memory: dict[str, object]) -> Step:
        document = json.loads(jobspec_text(1, {}))
        document["resources"][0]["with"].append({"type": "memory", **memory})
        return scheduler.handle([Submit((Submission(json.dumps(document), "me"),))], 1.0)

    for memory in ({"count": 4096}, {"count": 4, "unit": "GiB"}, {"count": 4 << 20, "unit": "K"}):
        assert submit(memory).replies[0].error is None
    too_large = str(submit({"count": 4097}).replies[0].error)
    assert "needs 4097Mi memory per slot, the largest node has 4Gi" in too_large
    assert "unit: unknown unit of memory" in str(submit({"count": 1, "unit": "acres"}).replies[0].error)

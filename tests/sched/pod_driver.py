"""A driver for pods that run without an end."""

from __future__ import annotations

from penstock.protocol.facts import MemberGone, WorkloadGone, WorkloadSet
from penstock.sched.records import ClaimSet
from penstock.sched.settings import Settings
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import endless, member, pods

__all__ = ["Pods"]


class Pods(Driver):
    """Pods and gangs without a limit, on nodes of 1000 units; they run until `end` deletes them."""

    def __init__(self, nodes: int = 4, policy: str = "easy", **more: object) -> None:
        settings = settings_of(policy, **more) if policy else Settings(**more)  # type: ignore[arg-type]
        super().__init__(pods(nodes), settings)
        endless(self)

    def restart(self) -> None:
        """Another process of the instance takes over, with what the store has recorded."""
        self.starts.clear()
        self.__post_init__()

    def pod(self, name: str, cpu: int = 500, **more: object) -> int:
        return self.gang(name, 1, cpu, **more)

    def gang(self, name: str = "gang", size: int = 2, cpu: int = 1000, **more: object) -> int:
        rules = {"distinct_nodes": size > 1, "owner": "ns", **more}
        workload = WorkloadSet(name, name, size, **rules)  # type: ignore[arg-type]
        members = [member(name, number, cpu) for number in range(size)]
        self.backend.workloads[name] = workload
        self.backend.members.update((one.member, one) for one in members)
        self.feed(workload, *members)
        job = self.scheduler.job_of_workload(name)
        assert job is not None
        return job.id

    def fill(self, nodes: int = 4) -> list[str]:
        """Two endless pods on every node, in order."""
        names = [f"old{number}" for number in range(2 * nodes)]
        for name in names:
            self.pod(name)
        self.settle()
        return names

    def end(self, *names: str) -> None:
        """Deletes workloads with their pods, and lets happen what follows."""
        for name in names:
            del self.backend.workloads[name]
            for key in [key for key, one in self.backend.members.items() if one.workload == name]:
                self.backend.runs.pop(key, None)
                del self.backend.members[key]
                self.feed(MemberGone(key))
            self.feed(WorkloadGone(name))
        self.settle()

    def nodes_of(self, job: int) -> set[str]:
        return {member.node for member in self.scheduler.jobs[job].members.values()}

    def claim(self, job: int) -> ClaimSet | None:
        return next((claim for claim in self.scheduler.claims() if claim.job == job), None)

    def claimed(self, job: int) -> tuple[str, ...]:
        found = self.claim(job)
        return found.nodes if found is not None else ()

    def started(self, *jobs: int) -> list[int]:
        """Which of these have started by now."""
        self.settle()
        return [job for job in jobs if job in self.starts]

"""Which active jobs wait for which jobs, and which jobs of one owner share a name (for singletons)."""

from __future__ import annotations

from penstock.sched.dependencies import JobProgress
from penstock.sched.job import Job

__all__ = ["DependencyIndex"]


class DependencyIndex:
    def __init__(self) -> None:
        self._dependents: dict[int, set[int]] = {}  # by the job that they wait for
        self._finished: dict[int, JobProgress] = {}  # finished jobs that have dependents
        self._by_name: dict[tuple[str, str], dict[int, None]] = {}  # by owner and name
        self._singletons: set[tuple[str, str]] = set()  # names with a singleton dependency

    def copy(self) -> DependencyIndex:
        made = DependencyIndex()
        made._dependents = {job: set(waiting) for job, waiting in self._dependents.items()}
        made._finished = dict(self._finished)
        made._by_name = {key: dict(jobs) for key, jobs in self._by_name.items()}
        made._singletons = set(self._singletons)
        return made

    # Jobs that others wait for

    def dependents_of(self, job: int) -> list[int]:
        return sorted(self._dependents.get(job, ()))

    def add(self, job: int, waits_for: int) -> None:
        self._dependents.setdefault(waits_for, set()).add(job)

    def drop_target(self, job: int) -> None:
        """Removes all dependencies on a job that is over."""
        self._dependents.pop(job, None)

    def progress_of(self, job: int) -> JobProgress | None:
        """The progress of a finished job that others depend on."""
        return self._finished.get(job)

    def add_finished(self, job: int, progress: JobProgress) -> None:
        self._finished[job] = progress

    # Jobs by name

    def add_name(self, job: Job) -> None:
        self._by_name.setdefault((job.owner, job.spec.name), {})[job.id] = None

    def jobs_named(self, owner: str, name: str) -> list[int]:
        return list(self._by_name.get((owner, name), ()))

    def add_singleton(self, owner: str, name: str) -> None:
        self._singletons.add((owner, name))

    def drop_singleton(self, owner: str, name: str) -> None:
        self._singletons.discard((owner, name))

    def has_singleton(self, owner: str, name: str) -> bool:
        return (owner, name) in self._singletons

    def forget(self, job: Job) -> None:
        """Removes an inactive job, with the dependencies that it had on others."""
        names = self._by_name.get((job.owner, job.spec.name))
        if names is not None:
            names.pop(job.id, None)
            if not names:
                del self._by_name[(job.owner, job.spec.name)]
        for dependency in job.spec.depends:
            waiting = self._dependents.get(dependency.job)
            if waiting is not None:
                waiting.discard(job.id)
                if not waiting:
                    del self._dependents[dependency.job]
                    self._finished.pop(dependency.job, None)

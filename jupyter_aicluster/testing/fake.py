"""A backend in memory: a first-come-first-served pool, plus whatever a test scripts a scheduler to say. For tests of what uses backends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from jupyter_aicluster.backends.base import Backend, Dialer
from jupyter_aicluster.errors import AIClusterError, HubUnreachable
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Availability, Fit, Inventory, Plan, Pool
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Ending, Observation, Word


@dataclass(slots=True)
class Job:
    handle: Handle
    gpus: int
    granted: bool = False
    end: End | None = None


@dataclass(slots=True)
class FakeScheduler:
    """What outlives a `FakeBackend`: several of them, like several kernels, may look at one.

    ``script``: what `observe` says next of a uid, one Observation a call, before the pool's own word counts again.
    ``unreadable``: uids whose answer is UNKNOWN. ``faults``: method name → the error its next call raises (for `observe`: UNKNOWN for all).
    """

    total: int = 16
    jobs: dict[str, Job] = field(default_factory=dict)
    script: dict[str, deque[Observation]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    faults: dict[str, AIClusterError] = field(default_factory=dict)
    hubs: dict[str, str] = field(default_factory=dict)  # uid → base URL
    calls: list[str] = field(default_factory=list)

    @property
    def living(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.end is None]

    @property
    def free(self) -> int:
        return self.total - sum(job.gpus for job in self.living if job.granted)

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.living if not job.granted]

    def say(self, handle: Handle, *observations: Observation) -> None:
        self.script.setdefault(handle.uid, deque()).extend(observations)

    def finish(self, handle: Handle, ending: Ending = Ending.DONE, cause: str = "it is over") -> None:
        job = self.jobs.get(handle.uid)
        if job is not None and job.end is None:
            job.end = End(ending, cause, time.time(), gpus=job.gpus)
        self.serve()

    def serve(self) -> None:
        """All or nothing, nobody passes the head."""
        for job in self.waiting:
            if job.gpus > self.free:
                return
            job.granted = True

    def called(self, method: str) -> None:
        self.calls.append(method)
        if (fault := self.faults.pop(method, None)) is not None:
            raise fault


class FakeBackend(Backend):
    name: ClassVar[str] = "fake"
    poll_s: ClassVar[tuple[float, float]] = (0.01, 0.05)

    @classmethod
    def from_options(cls, options: Options) -> Self:
        return cls()

    def __init__(self, scheduler: FakeScheduler | None = None) -> None:
        self.scheduler = scheduler or FakeScheduler()

    async def available(self) -> Availability:
        self.scheduler.called("available")
        return Availability(True)

    async def inventory(self) -> Inventory:
        self.scheduler.called("inventory")
        waiting = sum(job.gpus for job in self.scheduler.waiting)
        return Inventory((Pool("pool", self.scheduler.total, self.scheduler.free, simulated=True, waiting=waiting),))

    def plan(self, spec: ClusterSpec, inventory: Inventory) -> Plan:
        nodes, per_node = spec.shape(8)
        if spec.gpus > inventory.total:
            fit, because = Fit.NEVER, f"{spec.gpus} GPUs, there are {inventory.total}"
        elif spec.gpus <= (inventory.free or 0) and not inventory.pools[0].waiting:
            fit, because = Fit.NOW, f"{inventory.free} of {inventory.total} GPUs are free"
        else:
            fit, because = Fit.WAITS, f"{inventory.free} of {inventory.total} GPUs are free"
        return Plan(self.name, spec, nodes, per_node, f"fake --gpus {spec.gpus}", fit, because, simulated=True)

    async def submit(self, plan: Plan, handle: Handle, run: RunDir) -> None:
        self.scheduler.called("submit")
        self.scheduler.jobs[handle.uid] = Job(handle, plan.spec.gpus)

    async def observe(self, handles: Iterable[Handle]) -> Mapping[Handle, Observation]:
        asked = list(handles)
        try:
            self.scheduler.called("observe")
        except AIClusterError as error:
            return dict.fromkeys(asked, Observation(Word.UNKNOWN, reason=error.what))
        seen = {handle: self._look(handle) for handle in asked}
        self.scheduler.serve()
        return seen

    async def cancel(self, handle: Handle) -> None:
        self.scheduler.called("cancel")
        self.scheduler.finish(handle, Ending.STOPPED, "stopped")

    async def find(self) -> list[Handle]:
        self.scheduler.called("find")
        return [job.handle for job in self.scheduler.living]

    async def connect(self, handle: Handle) -> Dialer:
        self.scheduler.called("connect")
        if handle.uid not in self.scheduler.hubs:
            raise HubUnreachable(f"{handle.name} has no hub yet", hint="wait for it")
        return Dialer(self.scheduler.hubs[handle.uid])

    def _look(self, handle: Handle) -> Observation:
        scripted = self.scheduler.script.get(handle.uid)
        if handle.uid in self.scheduler.unreadable:
            return Observation(Word.UNKNOWN, reason="no answer")
        if scripted:
            return scripted.popleft()
        job = self.scheduler.jobs.get(handle.uid)
        if job is None:
            return Observation(Word.ABSENT)
        if job.end is not None:
            return Observation(Word.ENDED, reason=job.end.cause, end=job.end)
        if job.granted:
            return Observation(Word.GRANTED, reason=f"holds {job.gpus} GPUs")
        waiting = self.scheduler.waiting
        reason = f"Waiting for {job.gpus} GPUs: {self.scheduler.free} of {self.scheduler.total} are free"
        return Observation(Word.QUEUED, reason=reason, position=waiting.index(job) + 1, queue_length=len(waiting))

"""Cluster: GPUs granted together plus the Ray cluster formed on them. The public noun; blocking and thread-safe."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from jupyter_aicluster.calls import Call, pack_call, pack_map, pack_spmd
from jupyter_aicluster.cells import CellRun
from jupyter_aicluster.client import HubClient
from jupyter_aicluster.clusters import Clusters, Wish, clusters_of
from jupyter_aicluster.errors import AIClusterError, ClusterEnded, HubUnreachable, NotFound, UsageError
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.follow import Follower
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.loop import background
from jupyter_aicluster.options import Options
from jupyter_aicluster.payload import Stub, unpack
from jupyter_aicluster.plan import Plan
from jupyter_aicluster.protocol import CellReport, CellRequest
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import WORD_OF_HUB, End, Observation, State, Status, Word
from jupyter_aicluster.store import Record

T = TypeVar("T")
Change = Observation | Event
OnChange = Callable[[Change], None]
configured: Callable[[], Options] = Options  # for calls without ``options``; `jupyter_aicluster.Cluster` puts the configuration here
_log = logging.getLogger(__name__)
_REMEMBERED = frozenset({Kind.STATE, Kind.GATE, Kind.NODE, Kind.DEADLINE, Kind.GPUS, Kind.CELL, Kind.END})


class Cluster:
    """``with Cluster(gpus=16) as c: c.run(fn)``: GPUs, all or none, given back at the end of the block.

    Blocks until the cluster is ready (``wait_s``: at most so long, then `ClusterEnded`). Raises `NeverFits`, `SpecError` and
    `BackendUnavailable` before anything is submitted.
    """

    def __init__(
        self,
        gpus: int,
        *,
        backend: str = "auto",
        options: Options | None = None,
        wait_s: float | None = None,
        keep_s: float | None = None,
        **spec: Any,
    ) -> None:
        options = options or configured()
        made = self.ask(ClusterSpec(gpus=gpus, **spec), backend=backend, options=options, keep_s=keep_s)
        self._adopt(made._clusters, made.record)
        try:
            self.wait_ready(wait_s)
        except BaseException:
            self.stop()
            raise

    def _adopt(self, clusters: Clusters, record: Record) -> None:
        self._clusters = clusters
        self.handle: Handle = record.handle
        self.record = record
        self._run = RunDir(record.run)
        self._watchers: dict[int, OnChange] = {}
        self._cells: dict[str, CellRun] = {}
        self._latest: dict[tuple[object, ...], Change] = {}
        self._followed = False
        self._fetched: tempfile.TemporaryDirectory[str] | None = None
        background.run(self._start())

    # ---- making and finding

    @classmethod
    def ask(
        cls,
        spec: ClusterSpec,
        *,
        backend: str = "auto",
        options: Options | None = None,
        session: str = "main",
        owner: str = "",
        cell: CellRequest | None = None,
        payload: Path | None = None,
        keep_s: float | None = None,
        retries: int = 0,
        working_dir: Path | None = None,
        on_plan: Callable[[Plan], None] = lambda plan: None,
    ) -> Self:
        """Plan, record and submit; returns while it is queued. ``cell`` (inputs in ``payload``) runs as soon as N/N have joined."""
        options = options or configured()
        clusters = clusters_of(options)
        plan = background.run(cls._plan(clusters, spec, backend or options.backend))
        on_plan(plan)
        wish = Wish(
            session=session,
            owner=owner,
            time_s=spec.time_s or (options.time_s if cell else options.up_time_s),
            keep_s=options.keep_s if keep_s is None else keep_s,
            retries=retries,
            working_dir=(working_dir or _here()).resolve(),
            cell=cell,
            payload=payload,
        )
        return cls._of(clusters, background.run(clusters.submit(plan, wish)))

    @staticmethod
    async def _plan(clusters: Clusters, spec: ClusterSpec, name: str) -> Plan:
        return await clusters.plan(spec, await clusters.choose(name))

    @classmethod
    def plan(cls, spec: ClusterSpec, *, backend: str = "auto", options: Options | None = None) -> Plan:
        """What `ask` would send, and whether it fits. Submits nothing."""
        options = options or configured()
        return background.run(cls._plan(clusters_of(options), spec, backend or options.backend))

    @classmethod
    def attach(cls, name: str, *, options: Options | None = None) -> Self:
        """The cluster of that name or uid, whichever process made it. Raises `NotFound`."""
        clusters = clusters_of(options or configured())
        record = clusters.store.find(name)
        if not record.status.ended:
            clusters.backend(record.handle.backend)  # raises where it is not installed here
        return cls._of(clusters, record)

    @classmethod
    def list(cls, *, options: Options | None = None) -> list[Record]:
        """All records, newest first, as true as the schedulers can tell now."""
        return background.run(clusters_of(options or configured()).refresh())

    @classmethod
    def _of(cls, clusters: Clusters, record: Record) -> Self:
        cluster = cls.__new__(cls)
        cluster._adopt(clusters, record)
        return cluster

    # ---- what is so

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def spec(self) -> ClusterSpec:
        return self.record.spec

    @property
    def status(self) -> Status:
        record = self._clusters.store.get(self.handle.uid)
        if record is not None:
            self.record = record
        return self.record.status

    def watch(self, on_change: OnChange) -> Callable[[], None]:
        """Call ``on_change`` in the background thread with every Observation and Event, beginning with where things stand.

        The answer ends it. What it raises is logged, and ends nothing.
        """

        async def subscribe() -> None:
            for change in tuple(self._latest.values()):
                self._tell(on_change, change)
            self._watchers[id(on_change)] = on_change

        background.run(subscribe())
        return lambda: (self._watchers.pop(id(on_change), None), None)[1]

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Until N/N have joined. Raises `ClusterEnded` when it ends instead, or after ``timeout_s`` (the request then still stands)."""
        self._wait(lambda: self.status.state is State.READY or self.status.ended, timeout_s)
        status = self.status
        if status.ended:
            raise self._ended(status.end)
        if status.state is not State.READY:
            raise ClusterEnded(
                f"{self.name} is not ready after {timeout_s:.0f} s ({status.state})",
                hint=f"it still waits; %gpujob stop {self.name} ends it",
            )

    def wait_ended(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, at most ``timeout_s`` later."""
        return self._wait(lambda: self.status.ended, timeout_s)

    def snapshot(self) -> Mapping[str, Any]:
        """The hub's own view (GET /v1/cluster). Raises `HubUnreachable` while there is no hub."""
        return self._hub(HubClient.cluster)

    # ---- work

    def cell(self, request: CellRequest, payload: Path | None = None) -> CellRun:
        """Run a cell as soon as the cluster is ready; returns at once. Raises `ClusterEnded`."""
        run = self.run_of(request.cell_id)
        try:
            self._hub(lambda hub: hub.run_cell(request, payload))
        except BaseException:
            self._cells.pop(request.cell_id, None)
            raise
        return run

    def run_of(self, cell_id: str) -> CellRun:
        """A cell run that was, or will be, submitted: all its events, also those of before this process attached."""
        run = CellRun(cell_id)

        async def register() -> None:
            if (Kind.CELL, cell_id) in self._latest:
                await self._follower.replay(run.hear, lambda: self._cells.update({cell_id: run}))
            else:
                self._cells[cell_id] = run
            self._lose_cells_if_ended()

        background.run(register())
        return run

    def interrupt(self, cell_id: str) -> None:
        """Interrupt a cell run; a second time ends its driver. While the cluster is queued: cancels the request."""
        try:
            self._hub(lambda hub: hub.interrupt(cell_id))
        except HubUnreachable:
            if self.status.state in (State.SUBMITTED, State.QUEUED):
                self.stop()
            else:
                raise

    def keep(self, seconds: float) -> None:
        """Hold the GPUs until nothing has run for so long."""
        self._hub(lambda hub: hub.keep(seconds))

    def reset(self, session: str = "main") -> None:
        """Fresh processes for a session's driver and ranks: their variables are gone. Raises `UsageError` while one of its cells runs."""
        self._hub(lambda hub: hub.reset(session))

    def gathered(self, report: CellReport) -> dict[str, Sequence[Any]]:
        """Name → its values by rank, of a finished ``--spmd`` cell; a rank that has none left a `Stub`."""
        ranks = []
        for rank in range(report.ranks if report.gathered else 0):
            try:
                with self.value(f"{report.cell_id}.rank-{rank}").open("rb") as file:
                    ranks.append(unpack(file, tolerant=True))
            except NotFound:
                ranks.append({})
        return {
            name: [found.get(name, Stub(name, "nothing", f"Rank {rank} has no such name.")) for rank, found in enumerate(ranks)]
            for name in report.gathered
        }

    def value(self, cell_id: str, to: Path | None = None) -> Path:
        """A file with the values of a cell run that is over: from storage when this machine sees it, else from the hub."""
        stored = self._run.values / cell_id
        if stored.exists():
            return stored
        if self._fetched is None:
            self._fetched = tempfile.TemporaryDirectory(prefix="aicluster-")  # goes with this object
        target = to or Path(self._fetched.name) / cell_id
        self._hub(lambda hub: hub.value(cell_id, target))
        return target

    def streams(self) -> Sequence[Mapping[str, Any]]:
        """[{node, stream, size}] of the log streams."""
        if self.status.ended:
            last = max(self._run.logs.glob("*"), key=lambda path: int(path.name), default=None)
            found = sorted(last.glob("*/*")) if last else []
            return [{"node": int(path.parent.name), "stream": path.name, "size": path.stat().st_size} for path in found]
        return self._hub(HubClient.streams)

    def logs(self, node: int, stream: str, start: int = 0) -> bytes:
        """Raw bytes of a log from ``start`` on (at most about 1 MB a call; empty at its end)."""
        if self.status.ended:
            last = max(self._run.logs.glob("*"), key=lambda path: int(path.name), default=self._run.logs)
            try:
                return (last / str(node) / stream).read_bytes()[start:]
            except FileNotFoundError:
                return b""
        return self._hub(lambda hub: hub.log(node, stream, start))

    def stop(self, wait_s: float = 30.0) -> bool:
        """Give the GPUs back, whatever it is doing. Whether it has ended within ``wait_s``. Idempotent."""
        if self.status.ended:
            return True
        try:
            self._hub(HubClient.stop)
            if self.wait_ended(wait_s / 2) or wait_s <= 0:
                return self.status.ended
            wait_s /= 2  # it heard, but it does not end: the scheduler can make it
        except AIClusterError:  # no hub, or one that does not understand us
            pass
        background.run(self._clusters.cancel(self.handle))
        return self.wait_ended(wait_s)

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """Run ``fn(*args, **kwargs)`` on the cluster; the answer's `Call.result` waits for what it returns."""
        return self._call(*pack_call(fn, args, kwargs))

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``fn(*args, **kwargs)`` returns on the cluster, in one process on node 0 from which Ray spreads work."""
        return self.submit(fn, *args, **kwargs).result()

    def spmd(self, fn: Callable[..., Any], *args: Any, per: str = "gpu", **kwargs: Any) -> Sequence[Any]:
        """What ``fn(*args, **kwargs)`` returns in each rank: one process per GPU, or ``per="node"``, all started together.

        One that raises stops all; its exception is the `CellFailed`.
        """
        if per not in ("gpu", "node"):
            raise UsageError(f"per={per!r}", hint='per="gpu" or per="node"')
        result: Sequence[Any] = self._call(*pack_spmd(fn, args, kwargs, per)).result()
        return result

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any], *, gpus: float = 1) -> Sequence[Any]:
        """``[fn(item) for item in items]``, each as a Ray task with so many GPUs, spread over the cluster; in order."""
        results: Sequence[Any] = self._call(*pack_map(fn, items, gpus)).result()
        return results

    def _call(self, request: CellRequest, payload: Path) -> Call:
        try:
            return Call(self, self.cell(request, payload))
        finally:
            shutil.rmtree(payload.parent, ignore_errors=True)  # the hub has them now

    # ---- inside

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        status = self.status
        return f"<Cluster {self.name}: {self.spec.gpus} GPUs on {self.handle.backend}, {status.state}>"

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        follower = self._follower = Follower(
            self._run,
            lambda: self._clusters.backend(self.handle.backend).connect(self.handle),
            self._on_event,
            self._clusters.options.lease_s,
        )
        following = loop.create_task(follower.follow())

        def on_status(record: Record) -> None:
            self.record = record
            self._say(("observation",), record.status.observation)
            if record.status.ended:
                loop.create_task(self._end(follower, following, stop))  # noqa: RUF006  # ends by itself within seconds

        stop = self._clusters.reconciler.watch(self.handle, on_status)
        if self.record.status.ended:
            await self._end(follower, following, stop, patience_s=0)

    async def _end(self, follower: Follower, following: asyncio.Task[None], stop: Callable[[], None], patience_s: float = 2.0) -> None:
        """The scheduler says that it is over: hear the rest of what the hub had to say, then stop watching."""
        stop()
        await asyncio.wait([following], timeout=patience_s if not follower.ended else 0)
        following.cancel()
        follower.catch_up()
        self._followed = True
        end = self.status.end
        if not follower.ended and end is not None:
            self._on_event(Event(self.record.status.attempt, 0, end.ended_s, Kind.END, end.to_json()))
        self._lose_cells_if_ended()

    def _on_event(self, event: Event) -> None:
        if event.kind == Kind.STATE:
            word = WORD_OF_HUB.get(event.data.get("state", ""), Word.UNKNOWN)  # a newer hub may have a word for more
            self._clusters.reconciler.take(self.handle, Observation(word, attempt=event.attempt, reason=str(event.data.get("cause", ""))))
        for cell_id, run in tuple(self._cells.items()):
            run.hear(event)
            if run.over:
                del self._cells[cell_id]
        key = (event.kind, event.data.get("cell_id") or event.data.get("gate") or event.data.get("node"))
        self._say(key if event.kind in _REMEMBERED else None, event)

    def _say(self, key: tuple[object, ...] | None, change: Change) -> None:
        if key is not None:
            self._latest[key] = change
        for watcher in tuple(self._watchers.values()):
            self._tell(watcher, change)

    @staticmethod
    def _tell(watcher: OnChange, change: Change) -> None:
        try:
            watcher(change)
        except Exception:  # noqa: BLE001  # a display's fault must not end the following of the cluster
            _log.exception("a watcher failed")

    def _lose_cells_if_ended(self) -> None:
        if self._followed:
            end = self.status.end
            for run in self._cells.values():
                run.lost(end.cause if end else "its cluster is over", time.time())

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        async def until() -> bool:
            changed = asyncio.Event()
            loop_watcher = lambda change: changed.set()  # noqa: E731
            self._watchers[id(loop_watcher)] = loop_watcher
            try:
                async with asyncio.timeout(timeout_s):
                    while not condition():
                        changed.clear()
                        await changed.wait()
                return True
            except TimeoutError:
                return condition()
            finally:
                del self._watchers[id(loop_watcher)]

        return background.run(until())

    def _hub(self, ask: Callable[[HubClient], Awaitable[T]]) -> T:
        async def dial() -> T:
            dialer = await self._clusters.backend(self.handle.backend).connect(self.handle)
            async with HubClient(dialer, self._run) as hub:
                return await ask(hub)

        try:
            return background.run(dial())
        except HubUnreachable:
            if self.status.ended:
                raise self._ended(self.status.end) from None
            raise

    def _ended(self, end: End | None) -> AIClusterError:
        cause = end.cause if end else "it is over"
        return ClusterEnded(
            f"{self.name} has ended: {cause}", evidence=end.evidence if end else "", hint="run the cell again: a new cluster is asked for"
        )


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the folder this notebook runs in is gone", evidence=str(error), hint="%cd to one that exists") from error

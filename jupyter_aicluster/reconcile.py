"""The reconciler: one per process, asks each backend about all clusters in one call, and backs off while nothing changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from jupyter_aicluster.backends.base import Backend
from jupyter_aicluster.errors import AIClusterError
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.state import End, Ending, Observation, State, Status, Word, transition
from jupyter_aicluster.store import Record, Store

ABSENT_S = 60.0  # a scheduler that has not known a cluster for so long will not learn of it
_log = logging.getLogger(__name__)

OnStatus = Callable[[Record], None]


class Reconciler:
    """Keeps records true for the clusters that somebody watches. Lives in one loop; its callbacks run there."""

    def __init__(self, store: Store, backend: Callable[[str], Backend], now: Callable[[], float] = time.time) -> None:
        self._store, self._backend, self._now = store, backend, now
        self._watched: dict[Handle, set[OnStatus]] = {}
        self._told: dict[Handle, Status] = {}  # what the watchers know: another process may have changed the record before us
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._nudge: dict[str, asyncio.Event] = {}

    def watch(self, handle: Handle, on_status: OnStatus) -> Callable[[], None]:
        """``on_status`` hears every change of the record; call the answer to stop. The first look is at once."""
        self._watched.setdefault(handle, set()).add(on_status)
        name = handle.backend
        self._nudge.setdefault(name, asyncio.Event()).set()
        if name not in self._tasks or self._tasks[name].done():
            self._tasks[name] = asyncio.get_running_loop().create_task(self._poll(name))

        def stop() -> None:
            followers = self._watched.get(handle, set())
            followers.discard(on_status)
            if not followers:
                self._watched.pop(handle, None)
                self._told.pop(handle, None)

        return stop

    async def refresh(self, handles: Iterable[Handle]) -> None:
        """Look once, now, at these clusters, whoever watches them."""
        by_backend: dict[str, list[Handle]] = {}
        for handle in handles:
            by_backend.setdefault(handle.backend, []).append(handle)
        for name, group in by_backend.items():
            await self._look(name, group)

    def take(self, handle: Handle, seen: Observation) -> Record | None:
        """Bring one record up to date with one observation, wherever it came from; tells the watchers what changed."""
        before = self._store.get(handle.uid)
        if before is None:
            return None
        settled = settle(before, seen, self._now())
        record: Record | None
        try:
            record = self._store.update(handle.uid, lambda status: transition(status, before.target, settled))
        except OSError as error:  # a full disk: what is so can still be told
            _log.warning("the record of %s cannot be written: %s", handle.name, error)
            record = replace(before, status=transition(self._told.get(handle, before.status), before.target, settled))
        if record is not None and record.status != self._told.get(handle, before.status):
            for follower in list(self._watched.get(handle, ())):
                follower(record)
        if record is not None and handle in self._watched:
            self._told[handle] = record.status
        return record

    async def _poll(self, name: str) -> None:
        """Until nobody watches a cluster of this backend."""
        try:
            fastest, slowest = self._backend(name).poll_s
        except AIClusterError as error:  # its backend is no longer installed: nobody can say more of it
            _log.warning("%s", error)
            return
        pause = fastest
        while handles := [handle for handle in self._watched if handle.backend == name]:
            self._nudge[name].clear()
            changed = await self._look(name, handles)
            pause = fastest if changed else min(slowest, pause * 1.5)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._nudge[name].wait()
                    pause = fastest

    async def _look(self, name: str, handles: list[Handle]) -> bool:
        try:
            seen = await self._backend(name).observe(handles)
        except Exception as error:  # noqa: BLE001  # a backend is somebody else's code: its fault must not end the polling of all clusters
            _log.warning("%s could not be observed: %r", name, error)
            seen = dict.fromkeys(handles, Observation(Word.UNKNOWN, reason=f"{name} does not answer", evidence=str(error)))
        changed = False
        for handle in handles:
            before = self._store.get(handle.uid)
            record = self.take(handle, seen.get(handle, Observation(Word.UNKNOWN, reason=f"{name} said nothing of it")))
            changed |= record is not None and before is not None and record.status != before.status
        return changed


def settle(record: Record, seen: Observation, now_s: float) -> Observation:
    """ABSENT for so long without a break means lost: an end, with that cause. Everything else is as it was seen. Pure."""
    if seen.word is not Word.ABSENT:
        return seen
    before = record.status.observation
    since = before.since_s if before.word is Word.ABSENT and before.since_s is not None else now_s
    if now_s - since < ABSENT_S:
        return replace(seen, since_s=since)
    began = record.status.state is not State.SUBMITTED
    cause = f"{record.handle.backend} does not know it any more" if began else f"its submission never reached {record.handle.backend}"
    return Observation(Word.ENDED, attempt=max(seen.attempt, record.status.attempt), reason=cause, end=End(Ending.FAILED, cause, now_s))


def describe(status: Status) -> str:
    """One sentence on where a cluster stands, for lists."""
    if status.end:
        return status.end.cause
    return status.observation.reason or str(status.state)

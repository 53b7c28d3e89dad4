"""Onlooker: one cluster as somebody sees it who did not make it and does not wait for it. Runs in the background loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jupyter_aicluster.client import HubClient
from jupyter_aicluster.clusters import Clusters
from jupyter_aicluster.errors import AIClusterError, ClusterEnded, HubUnreachable
from jupyter_aicluster.protocol import is_id
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.state import WORD_OF_HUB, Observation, Word
from jupyter_aicluster.store import Record

T = TypeVar("T")
ANSWER_S = 3.0  # a hub that says nothing for so long says nothing
STOP_S = 15.0  # a hub that was told to end and has not by then: the scheduler takes the GPUs back
CHUNK_BYTES = 1 << 20
_stopping: set[asyncio.Task[None]] = set()


class Onlooker:
    """Nothing here renews the cluster's lease: a page left open somewhere must not hold GPUs."""

    def __init__(self, clusters: Clusters, record: Record) -> None:
        self._clusters, self._record = clusters, record
        self._run = RunDir(record.run)

    @property
    def attempt(self) -> int:
        return self._record.status.attempt

    @property
    def ended(self) -> bool:
        return self._record.status.ended

    async def look(self) -> dict[str, Any]:
        """The hub's own view (GET /v1/cluster); the record learns of it. Raises `HubUnreachable`."""
        seen = await self._hub(HubClient.cluster)
        word = WORD_OF_HUB.get(seen.get("state", ""), Word.UNKNOWN)
        self._clusters.reconciler.take(self._record.handle, Observation(word, attempt=int(seen.get("attempt", 1))))
        return seen

    async def keep(self, seconds: float) -> None:
        """Hold the GPUs until nothing has run for so long, whether or not a client is there. Raises `ClusterEnded`, `HubUnreachable`."""
        if self.ended:
            raise ClusterEnded(
                f"{self._record.handle.name} has ended: its GPUs are back", hint="run the cell again: a new cluster is asked for"
            )
        await self._hub(lambda hub: hub.keep(seconds))

    async def stop(self) -> None:
        """Have the GPUs given back, whatever state it is in; returns when somebody who can do it was told. Idempotent."""
        if self.ended:
            return
        try:
            await self._hub(HubClient.stop)
        except AIClusterError:  # no hub, or one that does not understand us
            await self._clusters.cancel(self._record.handle)
            return
        _stopping.add(task := asyncio.create_task(self._see_to_it()))
        task.add_done_callback(_stopping.discard)

    async def streams(self) -> Sequence[Mapping[str, Any]]:
        """[{node, stream, size}] of the log streams of the latest attempt; none while there is nothing to read."""
        if not self.ended:
            try:
                return await self._hub(HubClient.streams)
            except HubUnreachable:  # it starts, or it is just going: then what it has stored
                pass
        return await asyncio.to_thread(_stored, self._run)

    async def log(self, node: int, stream: str, start: int) -> bytes:
        """Raw bytes of a log from ``start`` on, at most `CHUNK_BYTES`; empty at its end."""
        if not self.ended:
            try:
                return await self._hub(lambda hub: hub.log(node, stream, start))
            except HubUnreachable:
                pass
        return await asyncio.to_thread(_read, self._run, node, stream, start)

    async def _see_to_it(self) -> None:
        ended = asyncio.Event()
        stop = self._clusters.reconciler.watch(self._record.handle, lambda record: ended.set() if record.status.ended else None)
        try:
            async with asyncio.timeout(STOP_S):
                await ended.wait()
        except TimeoutError:
            await self._clusters.cancel(self._record.handle)
        finally:
            stop()

    async def _hub(self, ask: Callable[[HubClient], Awaitable[T]]) -> T:
        name = self._record.handle.name
        try:
            async with asyncio.timeout(ANSWER_S):
                dialer = await self._clusters.backend(self._record.handle.backend).connect(self._record.handle)
                async with HubClient(dialer, self._run, observer=True) as hub:
                    return await ask(hub)
        except TimeoutError as error:
            raise HubUnreachable(f"the hub of {name} has not answered for {ANSWER_S:.0f} s", hint="it is tried again by itself") from error


def _latest(run: RunDir) -> Path | None:
    return max((path for path in run.logs.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name), default=None)


def _stored(run: RunDir) -> list[dict[str, Any]]:
    found = sorted(last.glob("*/*")) if (last := _latest(run)) else []
    return [{"node": int(path.parent.name), "stream": path.name, "size": path.stat().st_size} for path in found]


def _read(run: RunDir, node: int, stream: str, start: int) -> bytes:
    if (last := _latest(run)) is None or not is_id(stream):
        return b""
    try:
        with (last / str(node) / stream).open("rb") as file:
            file.seek(start)
            return file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return b""

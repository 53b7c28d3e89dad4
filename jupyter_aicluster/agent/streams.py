"""Readers of the hub's event stream: each is woken, and keeps the newest live event of every kind until it takes it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from jupyter_aicluster.events import Event, Kind

_LOG_TAIL = 8000  # characters of one stream that wait for a slow reader; the full text comes by range


class Stream:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._live: dict[tuple[object, ...], Event] = {}

    def wake(self) -> None:
        self._event.set()

    def keep(self, event: Event) -> None:
        """Latest wins; log text of one stream is joined, its oldest part dropped."""
        key = (event.kind, event.data.get("node"), event.data.get("stream"))
        before = self._live.get(key)
        if event.kind == Kind.LOG and before is not None:
            text = (before.data["text"] + event.data["text"])[-_LOG_TAIL:]
            event = Event(event.attempt, 0, event.time_s, event.kind, {**event.data, "text": text, "offset": before.data["offset"]})
        self._live[key] = event
        self._event.set()

    def take_live(self) -> list[Event]:
        taken, self._live = list(self._live.values()), {}
        return taken

    async def wait(self, timeout_s: float) -> bool:
        """True when something may be new; False after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Streams:
    def __init__(self) -> None:
        self._open: set[Stream] = set()
        self._changed = asyncio.Event()

    def open(self) -> Stream:
        stream = Stream()
        self._open.add(stream)
        stream.wake()
        return stream

    def close(self, stream: Stream) -> None:
        self._open.discard(stream)
        self._changed.set()

    def say(self, event: Event) -> None:
        for stream in self._open:
            if event.seq:
                stream.wake()
            else:
                stream.keep(event)
        self._changed.set()

    def wake(self) -> None:
        for stream in self._open:
            stream.wake()
        self._changed.set()

    async def changed(self, timeout_s: float) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def all_closed(self) -> None:
        while self._open:
            await self.changed(0.5)

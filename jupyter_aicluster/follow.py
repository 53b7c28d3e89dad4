"""Following one cluster: its hub's event stream from when there is a hub, resumed after every cut, to the last event in storage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from jupyter_aicluster.backends.base import Dialer
from jupyter_aicluster.client import HubClient
from jupyter_aicluster.errors import AIClusterError, HubUnreachable
from jupyter_aicluster.events import Cursor, Event, Kind
from jupyter_aicluster.rundir import RunDir

RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_log = logging.getLogger(__name__)


class Follower:
    """``dial`` says how to reach the hub and raises `HubUnreachable` while there is none. ``on_event`` runs in the loop."""

    def __init__(self, run: RunDir, dial: Callable[[], Awaitable[Dialer]], on_event: Callable[[Event], None], lease_s: float) -> None:
        self._run, self._dial, self._on_event = run, dial, on_event
        self._lease_s = lease_s
        self._cursor = Cursor()
        self._over = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the END event was seen."""
        return self._over.is_set()

    async def follow(self) -> None:
        """Until END, or until cancelled. Journaled events are passed on in order, each once."""
        failures = 0
        while not self.ended:
            try:
                async with HubClient(await self._dial(), self._run) as hub:
                    lease = asyncio.create_task(self._renew(hub))
                    try:
                        async for event in hub.events(self._cursor):
                            failures = 0
                            self._pass(event)
                    finally:
                        lease.cancel()
            except (HubUnreachable, OSError):  # no hub, or a run folder that is going
                pass
            except AIClusterError as error:
                _log.warning("the hub's events cannot be followed: %s", error)
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    def catch_up(self) -> None:
        """Pass on what storage has beyond what was heard: for a hub that went away before it could say it."""
        for event in self._stored():
            self._pass(event)

    async def replay(self, hear: Callable[[Event], None], then: Callable[[], None]) -> None:
        """Say all again that was passed on until now, each once, and call ``then`` before anything new is: nothing is lost in between."""
        said = Cursor()

        def say(event: Event) -> None:
            nonlocal said
            here = Cursor(event.attempt, event.seq)
            if event.seq and said < here <= self._cursor:
                said = here
                hear(event)

        if self._cursor > said and not self.ended:
            with suppress(HubUnreachable, OSError):
                async with HubClient(await self._dial(), self._run) as hub:
                    async for event in hub.events(Cursor()):
                        say(event)
                        if said >= self._cursor:
                            then()
                            return
        for event in self._stored():
            say(event)
        then()

    def _stored(self) -> Iterator[Event]:
        for path in sorted(self._run.journal.glob("*.ndjson"), key=lambda path: int(path.stem)):
            with suppress(FileNotFoundError), path.open("rb") as file:
                for line in file:
                    with suppress(ValueError):  # cut in half by the hub's death
                        yield Event.from_line(line)

    def _pass(self, event: Event) -> None:
        if event.seq:
            here = Cursor(event.attempt, event.seq)
            if here <= self._cursor:
                return
            self._cursor = here
        self._on_event(event)
        if event.kind == Kind.END:
            self._over.set()

    async def _renew(self, hub: HubClient) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 5)
            with suppress(AIClusterError):
                await hub.lease()

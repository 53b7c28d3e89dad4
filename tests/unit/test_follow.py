"""Following a hub: from before it is there, over every cut, to its last word or what storage has of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_aicluster import follow as module
from jupyter_aicluster.backends.base import Dialer
from jupyter_aicluster.errors import HubUnreachable
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.follow import Follower
from jupyter_aicluster.protocol import Beat
from jupyter_aicluster.rundir import RunDir, read_json
from tests.unit.hubs import Served, make_run, serving, submission


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.01,))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run", submission())


class Heard(list[Event]):
    @property
    def texts(self) -> list[str]:
        return [event.data["text"] for event in self if event.kind == Kind.NOTICE]

    @property
    def seqs(self) -> list[tuple[int, int]]:
        return [(event.attempt, event.seq) for event in self if event.seq]


def follower(run: RunDir, heard: Heard, lease_s: float = 600.0) -> Follower:
    async def dial() -> Dialer:
        found = read_json(run.hub)
        if found is None:
            raise HubUnreachable("no hub yet", hint="wait")
        return Dialer(f"https://{found['host']}:{found['port']}")

    return Follower(run, dial, heard.append, lease_s)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def end(hub: Served) -> None:
    await hub.ask("POST", "/v1/stop")
    for k in list(hub.brain.nodes):
        await hub.ask("POST", f"/v1/nodes/{k}/beat", json=Beat(k, f"b{k}", 1, leaving="the cluster ends").to_json())


async def test_from_before_the_hub_to_its_end(run: RunDir, tmp_path: Path) -> None:
    heard = Heard()
    following = asyncio.create_task((one := follower(run, heard)).follow())
    await asyncio.sleep(0.03)
    async with serving(run, submission(), tmp_path / "scratch", live=True) as hub:
        hub.hub.emit(Kind.NOTICE, {"text": "hello"})
        await until(lambda: heard.texts)
        await end(hub)
        async with asyncio.timeout(10):
            await following
    assert one.ended
    assert heard[-1].kind == Kind.END
    assert [seq for _, seq in heard.seqs] == list(range(1, len(heard.seqs) + 1))


async def test_over_cuts_each_event_is_passed_on_once(run: RunDir, tmp_path: Path) -> None:
    heard = Heard()
    async with serving(run, submission(), tmp_path / "scratch") as hub:
        following = asyncio.create_task(follower(run, heard).follow())
        for n in range(30):
            hub.hub.emit(Kind.NOTICE, {"text": str(n)})
            if n % 10 == 9:
                await until(lambda: hub.hub.streams._open)
                hub.hub.over.set()  # its streams end, as when a proxy cuts them
                hub.hub.streams.wake()
                await until(lambda: not hub.hub.streams._open)
                hub.hub.over.clear()
        await until(lambda: len(heard.texts) >= 30)
        following.cancel()
    assert heard.texts == [str(n) for n in range(30)]


async def test_while_somebody_follows_the_lease_is_renewed(run: RunDir, tmp_path: Path) -> None:
    async with serving(run, submission(), tmp_path / "scratch") as hub:
        following = asyncio.create_task(follower(run, Heard(), lease_s=0.05).follow())
        await until(lambda: hub.hub.streams._open)
        before = hub.brain.client_s
        await until(lambda: hub.brain.client_s > before)
        following.cancel()


async def test_what_a_dead_hub_could_not_say_is_in_storage(run: RunDir, tmp_path: Path) -> None:
    heard = Heard()
    one = follower(run, heard)
    events = [Event(1, n, float(n), Kind.NOTICE, {"text": f"1.{n}"}) for n in (1, 2)]
    later = [Event(2, 1, 9.0, Kind.NOTICE, {"text": "2.1"}), Event(2, 2, 9.0, Kind.END, {"ending": "failed"})]
    (run.journal / "10.ndjson").write_bytes(Event(10, 1, 9.0, Kind.NOTICE, {"text": "10.1"}).to_line()[:-9])  # cut by its death
    (run.journal / "2.ndjson").write_bytes(b"".join(event.to_line() for event in later))
    (run.journal / "1.ndjson").write_bytes(b"".join(event.to_line() for event in events))
    one._pass(events[0])
    one.catch_up()
    one.catch_up()
    assert list(heard) == events + later
    assert one.ended


async def test_live_events_are_not_held_back_by_the_cursor(run: RunDir) -> None:
    heard = Heard()
    one = follower(run, heard)
    for seq in (5, 0, 3, 0, 6):
        one._pass(Event(1, seq, 0.0, Kind.GPUS if not seq else Kind.NOTICE, {"text": ""}))
    assert [event.seq for event in heard] == [5, 0, 0, 6]


async def test_what_was_heard_is_said_again_and_nothing_is_lost_on_the_way(run: RunDir, tmp_path: Path) -> None:
    heard = Heard()
    following = follower(run, heard)
    async with serving(run, submission(), tmp_path / "scratch") as hub:
        task = asyncio.create_task(following.follow())
        for number in range(500):
            hub.hub.emit(Kind.NOTICE, {"text": str(number), "level": "info"})
        await until(lambda: heard.texts and heard.texts[-1] == "499")
        again, later = Heard(), list[int]()
        talking = asyncio.create_task(_talk(hub, 500, 600))
        await following.replay(again.append, lambda: later.append(len(heard.texts)))
        await talking
        await until(lambda: heard.texts[-1] == "599")
        assert again.texts + heard.texts[later[0] :] == [str(number) for number in range(600)]
        task.cancel()


async def _talk(hub: Served, first: int, last: int) -> None:
    for number in range(first, last):
        hub.hub.emit(Kind.NOTICE, {"text": str(number), "level": "info"})
        await asyncio.sleep(0)

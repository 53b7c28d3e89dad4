"""Looking at a cluster of somebody else's process, over a real hub: what is seen, and that a look holds no GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_aicluster.client import HubClient
from jupyter_aicluster.clusters import Clusters
from jupyter_aicluster.errors import ClusterEnded, HubUnreachable
from jupyter_aicluster.events import Cursor
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.jupyter import overview
from jupyter_aicluster.jupyter.overview import Overview, shown
from jupyter_aicluster.onlooker import Onlooker
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import Beat, CellRequest, RayState
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Ending, Observation, State, Status, Target, Word
from jupyter_aicluster.store import Record
from jupyter_aicluster.testing.fake import FakeBackend, FakeScheduler, Job
from tests.unit.hubs import Served, make_run, serving, submission

GPU = {"index": "0", "name": "simulated GPU", "mem_total_bytes": 8_000_000_000, "simulated": True}
CELL = CellRequest("c1", "main", "x = 1", label="In [7]", after_success_s=60.0)


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def clusters(tmp_path: Path, scheduler: FakeScheduler) -> Clusters:
    return Clusters(Options(home=tmp_path), {"fake": FakeBackend(scheduler)})


@pytest.fixture
async def hub(clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path) -> AsyncIterator[Served]:
    wanted = submission(backend="fake", lease_s=100.0)
    run = make_run(clusters.store.run(wanted.uid).path, wanted)
    handle = Handle("fake", wanted.uid, "fox")
    scheduler.jobs[wanted.uid] = Job(handle, 2, granted=True)
    status = Status(State.STARTING, observation=Observation(Word.GRANTED))
    clusters.store.put(Record(handle, ClusterSpec(gpus=2), 1_700_000_000.0, run.path, status, nodes=2, simulated=True))
    async with serving(run, wanted, tmp_path / "scratch") as served:
        scheduler.hubs[wanted.uid] = served.base
        yield served


def record_of(clusters: Clusters) -> Record:
    [record] = clusters.store.all()
    return record


def beat(hub: Served, node: int, ray: RayState = RayState.UP) -> None:
    hub.brain.beat(Beat(node, f"b{node}", 1, host=f"h{node}", ray=ray, gpus=(GPU,)))


async def listed(clusters: Clusters) -> dict[str, Any]:
    seen = Overview(clusters)
    [cluster] = await seen.all()
    seen.rest()
    return cluster


async def test_a_look_tells_the_record_what_only_the_hub_knows(clusters: Clusters, hub: Served) -> None:
    beat(hub, 0, RayState.STARTING)
    starting = await listed(clusters)
    assert (starting["state"], starting["sentence"]) == ("starting", "Starting on 2 simulated GPUs · 1 of 2 nodes connected")
    beat(hub, 0)
    beat(hub, 1, RayState.STARTING)
    assert "1 of 2 nodes joined" in (await listed(clusters))["sentence"]
    beat(hub, 1)
    ready = await listed(clusters)
    assert (ready["state"], ready["can_keep"], ready["can_stop"]) == ("ready", True, True)
    assert record_of(clusters).status.state is State.READY  # for everybody who reads it


async def test_time_left_is_the_nearest_deadline(clusters: Clusters, hub: Served) -> None:
    beat(hub, 0)
    beat(hub, 1)
    hub.brain.client_seen()
    deadlines = hub.brain.snapshot()["deadlines"]
    assert (await listed(clusters))["time_left"] == {"what": "keep", "at_s": deadlines["keep"]}
    hub.brain.add_cell(CELL)
    running = await listed(clusters)
    assert running["time_left"] == {"what": "time", "at_s": deadlines["time"]}


async def test_no_look_renews_the_lease_but_a_client_does(clusters: Clusters, hub: Served) -> None:
    before = hub.brain.client_s
    onlooker = Onlooker(clusters, record_of(clusters))
    await onlooker.look()
    await onlooker.streams()
    await onlooker.log(0, "driver-main", 0)
    async with HubClient(await clusters.backend("fake").connect(record_of(clusters).handle), hub.run, observer=True) as client:
        await client.lease()
        assert hub.brain.client_s == before
        hub.brain.finish(Ending.STOPPED, "stopped")
        hub.hub.over.set()
        assert [event async for event in client.events(Cursor())]
    assert hub.brain.client_s == before
    async with HubClient(await clusters.backend("fake").connect(record_of(clusters).handle), hub.run) as client:
        await client.cluster()
    assert hub.brain.client_s > before


async def test_a_lease_is_told_when_nobody_renews_it(clusters: Clusters, hub: Served) -> None:
    beat(hub, 0)
    beat(hub, 1)
    record, seen = record_of(clusters), await Onlooker(clusters, record_of(clusters)).look()
    at_s = seen["deadlines"]["lease"]
    assert shown(record, seen, at_s - 60)["time_left"]["what"] == "keep"  # more than half of it is left
    assert shown(record, seen, at_s - 40)["time_left"] == {"what": "lease", "at_s": at_s}


async def test_keep_holds_without_any_client(clusters: Clusters, hub: Served) -> None:
    beat(hub, 0)
    beat(hub, 1)
    await Onlooker(clusters, record_of(clusters)).keep(1000.0)
    deadlines = hub.brain.snapshot()["deadlines"]
    assert deadlines["lease"] == pytest.approx(deadlines["keep"], abs=1)  # else the lease (100 s) would break the promise
    hub.brain.client_seen()  # a client that comes and goes takes nothing of it
    assert hub.brain.snapshot()["deadlines"]["lease"] == deadlines["lease"]


async def test_keep_of_an_ended_one_is_refused(clusters: Clusters, hub: Served) -> None:
    clusters.reconciler.take(record_of(clusters).handle, Observation(Word.ENDED, end=End(Ending.DONE, "done", 1.0)))
    with pytest.raises(ClusterEnded, match="fox has ended"):
        await Onlooker(clusters, record_of(clusters)).keep(60)


async def test_the_latest_cell_is_told_in_the_words_of_the_card(clusters: Clusters, hub: Served) -> None:
    beat(hub, 0)
    beat(hub, 1)
    hub.brain.add_cell(CELL)
    session = hub.brain.sessions["main"]
    hub.brain.driver_events("main", session.start, 1, [{"k": "cell", "d": {"cell_id": "c1", "phase": "running"}}])
    running = await listed(clusters)
    assert running["sentence"].startswith("Running"), running
    assert running["tone"] == "run"
    assert running["since_s"] is not None


async def test_stop_through_the_hub_is_made_true_by_the_scheduler(
    clusters: Clusters, hub: Served, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_aicluster.onlooker.STOP_S", 0.02)
    await Onlooker(clusters, record_of(clusters)).stop()
    assert hub.brain.end is not None
    assert hub.brain.end.ending is Ending.STOPPED
    async with asyncio.timeout(10):
        while not record_of(clusters).status.ended:
            await asyncio.sleep(0.01)
    assert "cancel" in scheduler.calls  # the hub did not end within STOP_S
    assert record_of(clusters).target is Target.DOWN


async def test_a_hub_that_hangs_takes_nothing_from_the_others(clusters: Clusters, hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    beat(hub, 0)
    beat(hub, 1)
    await listed(clusters)
    monkeypatch.setattr("jupyter_aicluster.onlooker.ANSWER_S", 0.02)

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HubClient, "cluster", hang)
    seen = await listed(clusters)
    assert (seen["state"], "has not answered" in seen["notice"]) == ("ready", True)
    with pytest.raises(HubUnreachable):
        await Onlooker(clusters, record_of(clusters)).look()


async def test_logs_come_from_the_hub_while_there_is_one_then_from_storage(
    clusters: Clusters, hub: Served, scheduler: FakeScheduler
) -> None:
    hub.hub.logs.append(1, 0, "driver-main", 0, b"hello\n")
    onlooker = Onlooker(clusters, record_of(clusters))
    assert await onlooker.streams() == [{"node": 0, "stream": "driver-main", "size": 6}]
    assert await onlooker.log(0, "driver-main", 2) == b"llo\n"
    scheduler.hubs.clear()
    assert (await onlooker.streams(), await onlooker.log(0, "driver-main", 2)) == ([], b"")
    stored = hub.run.logs / "1" / "0"
    stored.mkdir(parents=True)
    (stored / "driver-main").write_bytes(b"hello\nbye\n")
    assert await onlooker.log(0, "driver-main", 6) == b"bye\n"


async def test_schedulers_are_left_alone_when_nobody_looks_any_more(
    clusters: Clusters, hub: Served, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "INTEREST_S", 0.02)
    seen = Overview(clusters)
    await seen.all()
    async with asyncio.timeout(10):
        while clusters.reconciler._watched:
            await asyncio.sleep(0.01)
    assert scheduler.calls.count("observe") >= 1

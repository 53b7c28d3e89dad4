"""Cluster, blocking, against the scripted backend and a real hub in the background loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_aicluster import payload
from jupyter_aicluster.calls import RESULT
from jupyter_aicluster.cluster import Change, Cluster
from jupyter_aicluster.clusters import Clusters, clusters_of
from jupyter_aicluster.errors import CellFailed, ClusterEnded, HubUnreachable, NeverFits, NotFound
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.loop import background
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import Beat, CellPhase, CellReport, CellRequest, RayState, Submission
from jupyter_aicluster.rundir import RunDir, read_json
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Ending, Observation, State
from jupyter_aicluster.testing.fake import FakeBackend, FakeScheduler
from tests.unit.hubs import Served, serving

SPEC = ClusterSpec(gpus=2, nodes=2)
CELL = CellRequest("c1", "main", "x = 1", outputs=("x",), after_success_s=60.0)


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(total=2)


@pytest.fixture
def options(tmp_path: Path, scheduler: FakeScheduler) -> Options:
    made = Options(home=tmp_path / "home", backend="fake")
    clusters_of(made, lambda given: Clusters(given, {"fake": FakeBackend(scheduler)}))
    return made


@pytest.fixture
def cluster(options: Options) -> Cluster:
    return Cluster.ask(SPEC, backend="fake", options=options)


class World:
    """A hub of the cluster, its nodes and its driver."""

    def __init__(self, served: Served, scheduler: FakeScheduler, cluster: Cluster) -> None:
        self.served, self.scheduler, self.cluster = served, scheduler, cluster
        self.batch = 0

    def post(self, path: str, body: dict[str, Any]) -> Any:
        status, said = background.run(self.served.ask("POST", path, json=body))
        assert status == 200, said
        return said

    def join(self) -> None:
        for k in (0, 1):
            for ray in (RayState.ABSENT, RayState.UP):
                self.post(f"/v1/nodes/{k}/beat", Beat(k, f"b{k}", 1, ray=ray).to_json())

    def say(self, *events: tuple[str, dict[str, Any]]) -> None:
        self.batch += 1
        self.post("/v1/drivers/main/events", {"start": 1, "batch": self.batch, "events": [{"k": kind, "d": data} for kind, data in events]})

    def leave(self) -> None:
        """The nodes say goodbye, and the scheduler learns of the end."""
        for k in (0, 1):
            self.post(f"/v1/nodes/{k}/beat", Beat(k, f"b{k}", 1, leaving="the cluster ends").to_json())
        end = self.served.brain.end
        assert end is not None
        self.scheduler.finish(self.cluster.handle, end.ending, end.cause)


@contextmanager
def world_of(cluster: Cluster, scheduler: FakeScheduler, tmp_path: Path) -> Iterator[World]:
    run = RunDir(cluster.record.run)
    told = read_json(run.submission)
    assert told is not None
    stack = AsyncExitStack()
    served = background.run(stack.enter_async_context(serving(run, Submission.from_json(told), tmp_path / "scratch", live=True)))
    scheduler.hubs[cluster.handle.uid] = served.base
    try:
        yield World(served, scheduler, cluster)
    finally:
        scheduler.hubs.clear()
        background.run(stack.aclose())


@pytest.fixture
def world(cluster: Cluster, scheduler: FakeScheduler, tmp_path: Path) -> Iterator[World]:
    with world_of(cluster, scheduler, tmp_path) as made:
        yield made


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_from_the_queue_to_ready_to_a_result(cluster: Cluster, world: World) -> None:
    changes: list[Change] = []
    unwatch = cluster.watch(changes.append)
    world.join()
    cluster.wait_ready(10)
    assert cluster.status.state is State.READY
    assert cluster.snapshot()["state"] == "ready"
    run = cluster.cell(CELL)
    assert not run.wait(0)
    output = {"cell_id": "c1", "output": {"output_type": "stream", "name": "stdout", "text": "hi"}}
    world.say(("driver", {}), ("cell", CellReport("c1", CellPhase.RUNNING).to_json()), ("output", output))
    world.say(("cell", CellReport("c1", CellPhase.DONE, names=("x",)).to_json()))
    assert run.wait(10)
    assert run.report is not None
    assert run.report.phase == CellPhase.DONE
    kinds = []
    while not run.events.empty():
        kinds.append(run.events.get().kind)
    assert [kind for kind in kinds if kind != "notice"] == ["cell", "cell", "output", "cell"]
    unwatch()
    words = [change.word for change in changes if isinstance(change, Observation)]
    assert words[-1] == "ready"
    assert {"state", "gate", "node", "cell", "output"} <= {change.kind for change in changes if isinstance(change, Event)}


def test_a_late_watcher_hears_where_things_stand(cluster: Cluster, world: World) -> None:
    world.join()
    cluster.wait_ready(10)
    until(lambda: len([change for change in cluster._latest.values() if isinstance(change, Event) and change.kind == Kind.NODE]) == 2)
    heard: list[Change] = []
    cluster.watch(heard.append)()
    gates = [(change.data["gate"], change.data["have"]) for change in heard if isinstance(change, Event) and change.kind == Kind.GATE]
    assert gates == [("connected", 2), ("joined", 2)]
    states = [change.data["state"] for change in heard if isinstance(change, Event) and change.kind == Kind.STATE]
    assert states == ["ready"]


def test_a_watcher_that_fails_ends_nothing(cluster: Cluster, world: World, caplog: pytest.LogCaptureFixture) -> None:
    def broken(change: Change) -> None:
        raise RuntimeError("a display's fault")

    cluster.watch(broken)
    world.join()
    cluster.wait_ready(10)
    assert "a watcher failed" in caplog.text


def test_stop_gives_back_and_everything_after_says_so(cluster: Cluster, world: World, options: Options) -> None:
    world.join()
    cluster.wait_ready(10)
    run = cluster.cell(CELL)
    assert not cluster.stop(wait_s=0)
    until(lambda: world.served.brain.end)
    world.leave()
    assert cluster.wait_ended(10)
    assert run.wait(10)
    assert run.report is not None
    assert run.report.phase == CellPhase.INTERRUPTED
    end = cluster.status.end
    assert end is not None
    assert (end.ending, end.cause) == (Ending.STOPPED, "stopped by its user")
    assert cluster.stop()
    with pytest.raises(ClusterEnded, match="stopped by its user"):
        cluster.cell(CellRequest("c2", "main", ""))
    with pytest.raises(ClusterEnded):
        cluster.wait_ready(1)


def test_a_hub_that_dies_without_a_word_loses_its_cells_with_the_schedulers_cause(
    cluster: Cluster, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    with world_of(cluster, scheduler, tmp_path) as world:
        world.join()
        cluster.wait_ready(10)
        run = cluster.cell(CELL)
        world.say(("driver", {}), ("cell", CellReport("c1", CellPhase.RUNNING).to_json()))
        until(lambda: run.report and run.report.phase == CellPhase.RUNNING)
        scheduler.hubs.clear()
        background.run(_cut(world.served))
        scheduler.finish(cluster.handle, Ending.FAILED, "its hub was killed")
        assert run.wait(10)
    assert run.report is not None
    assert (run.report.phase, run.report.cause) == (CellPhase.LOST, "its hub was killed")


async def _cut(served: Served) -> None:
    served.hub.over.set()
    served.hub.streams.wake()


def test_interrupt_while_queued_cancels_the_request(options: Options, scheduler: FakeScheduler, cluster: Cluster) -> None:
    waiting = Cluster.ask(SPEC, backend="fake", options=options)
    until(lambda: waiting.status.state is State.QUEUED)
    waiting.interrupt("c1")
    assert waiting.wait_ended(10)
    assert [job.handle for job in scheduler.living] == [cluster.handle]


def test_interrupt_of_a_running_cell_goes_to_its_hub(cluster: Cluster, world: World) -> None:
    world.join()
    cluster.wait_ready(10)
    cluster.cell(CELL)
    world.say(("driver", {}), ("cell", CellReport("c1", CellPhase.RUNNING).to_json()))
    cluster.interrupt("c1")
    assert world.served.brain.wanted_order("main") == ("interrupt", "c1", 1)


def test_without_a_hub_calls_say_so_and_a_wait_has_an_end(cluster: Cluster) -> None:
    with pytest.raises(HubUnreachable):
        cluster.keep(60.0)
    with pytest.raises(ClusterEnded, match="is not ready after 0 s"):
        cluster.wait_ready(0.05)
    assert not cluster.wait_ended(0.05)


def test_what_never_fits_leaves_no_trace(options: Options) -> None:
    with pytest.raises(NeverFits):
        Cluster(3, backend="fake", options=options)
    assert Cluster.list(options=options) == []


def test_one_that_is_not_ready_in_time_is_given_back(options: Options, scheduler: FakeScheduler) -> None:
    with pytest.raises(ClusterEnded):
        Cluster(2, backend="fake", options=options, wait_s=0.05)
    assert scheduler.living == []


def test_attach_by_name_or_uid_and_the_list(cluster: Cluster, options: Options, world: World) -> None:
    world.join()
    cluster.wait_ready(10)
    for name in (cluster.name, cluster.handle.uid):
        other = Cluster.attach(name, options=options)
        assert other.handle == cluster.handle
        assert other.status.state is State.READY
    with pytest.raises(NotFound):
        Cluster.attach("nobody", options=options)
    assert [record.handle for record in Cluster.list(options=options)] == [cluster.handle]


def test_a_cell_that_was_submitted_with_the_cluster_is_heard_from_its_beginning(
    options: Options, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    plans: list[str] = []
    cluster = Cluster.ask(SPEC, backend="fake", options=options, cell=CELL, on_plan=lambda plan: plans.append(plan.text))
    run = cluster.run_of("c1")
    with world_of(cluster, scheduler, tmp_path) as world:
        until(lambda: run.report)
        assert run.report is not None
        assert run.report.phase == CellPhase.WAITING
        world.join()
        world.say(("driver", {}), ("cell", CellReport("c1", CellPhase.DONE).to_json()))
        assert run.wait(10)
        assert cluster.run_of("c1").wait(10)  # also for who asks later
    assert plans == ["fake --gpus 2"]


def test_a_value_is_taken_from_storage_where_it_is_seen_else_from_the_hub(cluster: Cluster, world: World, tmp_path: Path) -> None:
    stored = RunDir(cluster.record.run).values / "c1"
    stored.write_bytes(b"value")
    assert cluster.value("c1") == stored
    target = tmp_path / "elsewhere"
    cluster._run = RunDir(tmp_path / "not" / "mounted")
    with pytest.raises(HubUnreachable, match="keys cannot be read"):
        cluster.value("c1", target)  # no certificate here either
    cluster._run = RunDir(cluster.record.run)
    moved = stored.rename(tmp_path / "moved")
    with pytest.raises(NotFound):
        cluster.value("c1", target)
    assert moved.exists()


def test_a_python_call_and_its_failure(cluster: Cluster, world: World) -> None:
    world.join()
    cluster.wait_ready(10)
    world.say(("driver", {}))
    call = cluster.submit(max, 3, 5)
    (cell_id,) = world.served.brain.requests
    with (RunDir(cluster.record.run).values / cell_id).open("wb") as file:
        payload.pack({RESULT: 5}, file)
    world.say(("cell", CellReport(cell_id, CellPhase.DONE, names=(RESULT,)).to_json()))
    assert call.result(10) == 5
    failing = cluster.submit(max, 3, None)
    error = {"ename": "TypeError", "evalue": "not supported", "traceback": ["there"]}
    world.say(("cell", CellReport(list(world.served.brain.requests)[-1], CellPhase.FAILED, error=error).to_json()))
    with pytest.raises(CellFailed, match="TypeError: not supported"):
        failing.result(10)


def test_the_end_of_a_block_stops_it(cluster: Cluster, scheduler: FakeScheduler) -> None:
    with cluster as same:
        assert same is cluster
        assert "2 GPUs on fake" in repr(same)
    assert scheduler.living == []

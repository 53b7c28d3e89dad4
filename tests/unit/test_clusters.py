"""What is written and sent when a cluster is asked for."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from jupyter_aicluster.backends import registry
from jupyter_aicluster.backends.base import Backend
from jupyter_aicluster.clusters import Clusters, Wish, clusters_of
from jupyter_aicluster.errors import BackendUnavailable, NeverFits, SubmitError
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Availability, Plan
from jupyter_aicluster.protocol import CellRequest, Submission
from jupyter_aicluster.rundir import RunDir, read_json
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Ending, State, Target
from jupyter_aicluster.testing.fake import FakeBackend, FakeScheduler

SPEC = ClusterSpec(gpus=4, nodes=2, label="Digits")


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(total=8)


@pytest.fixture
def clusters(tmp_path: Path, scheduler: FakeScheduler) -> Clusters:
    return Clusters(Options(home=tmp_path / "home", lease_s=77.0), {"fake": FakeBackend(scheduler)})


def wish(tmp_path: Path, cell: CellRequest | None = None, payload: Path | None = None) -> Wish:
    return Wish(session="nb", owner="kernel", time_s=60.0, keep_s=5.0, retries=2, working_dir=tmp_path, cell=cell, payload=payload)


async def planned(clusters: Clusters, spec: ClusterSpec = SPEC) -> Plan:
    return await clusters.plan(spec, await clusters.choose("fake"))


async def test_the_run_folder_is_complete_and_private_before_anything_is_sent(
    clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    (tmp_path / "inputs").write_bytes(b"payload")
    cell = CellRequest("c1", "nb", "x = 1", inputs="ab12")
    seen: list[set[str]] = []

    class Looking(FakeBackend):
        async def submit(self, plan: Plan, handle: Handle, run: RunDir) -> None:
            seen.append({str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()})
            assert clusters.store.get(handle.uid) is not None  # recorded first
            await super().submit(plan, handle, run)

    clusters._backends["fake"] = Looking(scheduler)
    record = await clusters.submit(await planned(clusters), wish(tmp_path, cell, tmp_path / "inputs"))
    assert seen == [
        {"submission.json", "bundle.zip", "files/ab12", "secrets/hub.key", "secrets/hub.crt", "secrets/hub.token", "secrets/ray.token"}
    ]
    run = RunDir(record.run)
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.path.rglob("*") if path.is_file()} == {0o600}
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert (record.handle.name, record.nodes, record.owner, record.status.state) == ("digits", 2, "kernel", State.SUBMITTED)
    told = read_json(run.submission)
    assert told is not None
    submission = Submission.from_json(told)
    assert submission.cluster_spec == SPEC
    assert (submission.nodes, submission.gpus_per_node, submission.time_s, submission.lease_s, submission.retries) == (2, 2, 60.0, 77.0, 2)
    assert (submission.session, submission.working_dir) == ("nb", str(tmp_path))
    assert submission.cell is not None
    assert CellRequest.from_json(submission.cell) == cell


async def test_tokens_are_each_clusters_own_and_in_no_record(clusters: Clusters, tmp_path: Path) -> None:
    records = [await clusters.submit(await planned(clusters), wish(tmp_path)) for _ in range(2)]
    runs = [RunDir(record.run) for record in records]
    tokens = {path.read_text() for run in runs for path in (run.hub_token, run.ray_token)}
    assert len(tokens) == 4
    written = json.dumps([record.to_json() for record in records]) + "".join(run.submission.read_text() for run in runs)
    assert not any(token in written for token in tokens)
    assert [record.handle.name for record in records] == ["digits", "digits-2"]


async def test_what_never_fits_is_neither_recorded_nor_sent(clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path) -> None:
    with pytest.raises(NeverFits, match="24 GPUs") as caught:
        await clusters.submit(await planned(clusters, ClusterSpec(gpus=24)), wish(tmp_path))
    assert "Nothing was submitted." in str(caught.value)
    assert clusters.store.all() == []
    assert "submit" not in scheduler.calls


async def test_a_refused_submission_is_an_ended_record_with_the_schedulers_words(
    clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    scheduler.faults["submit"] = SubmitError("sbatch refused it", hint="ask for less")
    with pytest.raises(SubmitError):
        await clusters.submit(await planned(clusters), wish(tmp_path))
    (record,) = clusters.store.all()
    assert record.status.end is not None
    assert (record.status.end.ending, record.status.end.cause) == (Ending.FAILED, "sbatch refused it")


async def test_cancel_says_down_asks_the_scheduler_and_looks(clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path) -> None:
    record = await clusters.submit(await planned(clusters), wish(tmp_path))
    await clusters.cancel(record.handle)
    await clusters.cancel(record.handle)
    after = clusters.store.get(record.handle.uid)
    assert after is not None
    assert (after.target, after.status.state) == (Target.DOWN, State.ENDED)
    assert scheduler.free == 8


async def test_a_list_is_as_true_as_the_schedulers_can_tell(clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path) -> None:
    first = await clusters.submit(await planned(clusters), wish(tmp_path))
    second = await clusters.submit(await planned(clusters), wish(tmp_path))
    await clusters.refresh()
    scheduler.finish(first.handle)
    scheduler.unreadable.add(second.handle.uid)
    calls = len(scheduler.calls)
    states = {record.handle: record.status.state for record in await clusters.refresh()}
    assert states == {first.handle: State.ENDED, second.handle: State.QUEUED}
    assert scheduler.calls[calls:] == ["observe"]


class Away(FakeBackend):
    async def available(self) -> Availability:
        return Availability(False, "sinfo does not answer", "module load slurm")


async def test_auto_is_the_first_that_answers_in_the_documented_order(
    tmp_path: Path, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "names", list)
    here, away = FakeBackend(scheduler), Away(scheduler)
    options = Options(home=tmp_path)

    async def chosen(**backends: Backend) -> Backend:
        return await Clusters(options, backends).choose("auto")

    assert await chosen(slurm=away, local=here) is here
    assert await chosen(kubernetes=here, local=away) is here
    assert await chosen(local=away, kubernetes=away, slurm=here) is here
    with pytest.raises(BackendUnavailable) as caught:
        await chosen(slurm=away)
    assert "slurm: sinfo does not answer" in caught.value.evidence
    assert caught.value.hint == "module load slurm"
    with pytest.raises(BackendUnavailable, match="can be used from here"):
        await Clusters(options, {"slurm": away}).choose("slurm")
    with pytest.raises(BackendUnavailable, match="no backend called 'moon'"):
        await Clusters(options).choose("moon")


def test_one_process_has_one_of_them_for_a_home_with_the_newest_options(tmp_path: Path) -> None:
    first = clusters_of(Options(home=tmp_path / "a"))
    assert clusters_of(Options(home=tmp_path / "a", keep_s=1.0)) is first
    assert first.options.keep_s == 1.0
    assert clusters_of(Options(home=tmp_path / "b")) is not first


async def test_ctrl_c_while_it_is_sent_gives_it_back_when_it_has_arrived(
    clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    sending, go_on = asyncio.Event(), asyncio.Event()

    class Slow(FakeBackend):
        async def submit(self, plan: Plan, handle: Handle, run: RunDir) -> None:
            sending.set()
            await go_on.wait()
            await super().submit(plan, handle, run)

    clusters._backends["fake"] = Slow(scheduler)
    task = asyncio.create_task(clusters.submit(await planned(clusters), wish(tmp_path)))
    await sending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    async with asyncio.timeout(10):
        while clusters._withdrawing:
            await asyncio.sleep(0.01)
    [record] = clusters.store.all()
    assert record.target is Target.DOWN
    assert record.status.state in (State.ENDING, State.ENDED)


async def test_a_disk_without_room_is_one_sentence_and_an_ended_record(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(clusters, "_write_run", full)
    with pytest.raises(SubmitError, match="cannot be written") as raised:
        await clusters.submit(await planned(clusters), wish(tmp_path))
    assert "Nothing was submitted" in str(raised.value)
    assert [record.status.state for record in clusters.store.all()] == [State.ENDED]


async def test_inputs_of_the_first_cell_are_not_read_into_memory(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inputs").write_bytes(b"payload")
    monkeypatch.setattr(Path, "read_bytes", None)  # whoever reads a whole file fails
    monkeypatch.setattr("jupyter_aicluster.bundle.place", lambda cache, target: None)
    cell = CellRequest("c1", "nb", "x = 1", inputs="ab12")
    monkeypatch.setattr("jupyter_aicluster.rundir.read_json", lambda path: None)
    run = RunDir(tmp_path / "run")
    clusters._write_run(run, Handle("fake", "u", "fox"), await planned(clusters), wish(tmp_path, cell, tmp_path / "inputs"))
    monkeypatch.undo()
    (tmp_path / "inputs").unlink()  # its caller is done with it
    assert (run.files / "ab12").read_bytes() == b"payload"
    assert stat.S_IMODE((run.files / "ab12").stat().st_mode) == 0o600


async def test_a_stop_needs_no_room_on_the_disk(
    clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await clusters.submit(await planned(clusters), wish(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jupyter_aicluster.store.write_json", full)
    heard: list[State] = []
    stop = clusters.reconciler.watch(record.handle, lambda now: heard.append(now.status.state))
    await clusters.cancel(record.handle)
    assert State.ENDED in heard
    stop()

"""The reconciler: one call a backend for all clusters, faults that concern nobody else, and back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_aicluster.errors import BackendUnavailable
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.reconcile import ABSENT_S, Reconciler, describe, settle
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Ending, Observation, State, Status, Target, Word, transition
from jupyter_aicluster.store import Record, Store
from jupyter_aicluster.testing.fake import FakeBackend, FakeScheduler, Job


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(total=8)


def reconciler(store: Store, scheduler: FakeScheduler, now: Callable[[], float] = lambda: 1000.0) -> Reconciler:
    return Reconciler(store, lambda name: FakeBackend(scheduler), now)


def submitted(store: Store, scheduler: FakeScheduler, uid: str = "u1", gpus: int = 8) -> Handle:
    handle = Handle("fake", uid, f"fox-{uid}")
    store.put(Record(handle, ClusterSpec(gpus=gpus), 1000.0, store.run(uid).path))
    scheduler.jobs[uid] = Job(handle, gpus)
    return handle


def state_of(store: Store, handle: Handle) -> State:
    record = store.get(handle.uid)
    assert record is not None
    return record.status.state


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_watcher_hears_each_change_once_and_no_more_after_it_stops(store: Store, scheduler: FakeScheduler) -> None:
    handle = submitted(store, scheduler)
    seen: list[State] = []
    stop = reconciler(store, scheduler).watch(handle, lambda record: seen.append(record.status.state))
    await until(lambda: State.STARTING in seen)
    assert seen == [State.QUEUED, State.STARTING]
    stop()
    stop()
    scheduler.finish(handle)
    calls = len(scheduler.calls)
    await asyncio.sleep(0.05)
    assert seen == [State.QUEUED, State.STARTING]
    assert len(scheduler.calls) <= calls + 1


async def test_all_clusters_of_a_backend_in_one_call(store: Store, scheduler: FakeScheduler) -> None:
    handles = [submitted(store, scheduler, f"u{n}", 1) for n in range(5)]
    await reconciler(store, scheduler).refresh(handles)
    assert scheduler.calls == ["observe"]
    assert {state_of(store, handle) for handle in handles} == {State.QUEUED}


async def test_one_watch_is_one_look_until_it_is_time_for_the_next(
    store: Store, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBackend, "poll_s", (60.0, 60.0))
    handle, other = submitted(store, scheduler), submitted(store, scheduler, "u2")
    poller = reconciler(store, scheduler)
    stop = poller.watch(handle, lambda record: None)
    await asyncio.sleep(0.03)
    assert scheduler.calls == ["observe"]
    stop_other = poller.watch(other, lambda record: None)  # somebody new must not wait for a minute
    await asyncio.sleep(0.03)
    assert scheduler.calls == ["observe", "observe"]
    stop()
    stop_other()
    poller._nudge["fake"].set()  # let the poll see that nobody is left
    await until(lambda: poller._tasks["fake"].done())


async def test_it_backs_off_while_nothing_changes(store: Store, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real = asyncio.timeout

    mine = asyncio.get_running_loop()

    def timeout(delay: float | None) -> asyncio.Timeout:
        if asyncio.get_running_loop() is not mine or delay is None:  # the background loop of other tests
            return real(delay)
        pauses.append(delay)
        return real(0.0)

    monkeypatch.setattr(FakeBackend, "poll_s", (5.0, 60.0))
    monkeypatch.setattr("jupyter_aicluster.reconcile.asyncio.timeout", timeout)
    handle = submitted(store, scheduler)
    stop = reconciler(store, scheduler).watch(handle, lambda record: None)
    for _ in range(100_000):
        await asyncio.sleep(0)
        if pauses and pauses[-1] == 60.0:
            break
    stop()
    assert pauses[:2] == [5.0, 5.0]  # queued, starting
    assert pauses[2:6] == [7.5, 11.25, 16.875, 25.3125]
    assert max(pauses) == 60.0
    monkeypatch.undo()
    await asyncio.sleep(0)


async def test_a_backend_that_fails_in_any_way_ends_no_polling(store: Store, scheduler: FakeScheduler) -> None:
    handle = submitted(store, scheduler)
    faults = iter([RuntimeError("a bug"), KeyError("another"), None])

    class Faulty(FakeBackend):
        async def observe(self, handles: Iterable[Handle]) -> Mapping[Handle, Observation]:
            if (fault := next(faults, None)) is not None:
                raise fault
            return await super().observe(handles)

    seen: list[Observation] = []
    stop = Reconciler(store, lambda name: Faulty(scheduler)).watch(handle, lambda record: seen.append(record.status.observation))
    await until(lambda: state_of(store, handle) is State.STARTING)
    stop()
    assert (seen[0].word, seen[0].reason, seen[0].evidence) == (Word.UNKNOWN, "fake does not answer", "a bug")


async def test_a_handle_the_backend_says_nothing_of_is_unknown(store: Store, scheduler: FakeScheduler) -> None:
    handle, forgotten = submitted(store, scheduler), submitted(store, scheduler, "u2")

    class Forgetful(FakeBackend):
        async def observe(self, handles: Iterable[Handle]) -> Mapping[Handle, Observation]:
            return {handle: Observation(Word.GRANTED)}

    await Reconciler(store, lambda name: Forgetful(scheduler)).refresh([forgotten, handle])
    assert (state_of(store, handle), state_of(store, forgotten)) == (State.STARTING, State.SUBMITTED)


async def test_a_backend_that_is_not_installed_here_is_an_answer_unknown(store: Store, scheduler: FakeScheduler) -> None:
    handle = submitted(store, scheduler)

    def missing(name: str) -> FakeBackend:
        raise BackendUnavailable(f"there is no backend called {name!r}", hint="install it")

    await Reconciler(store, missing).refresh([handle])
    record = store.get(handle.uid)
    assert record is not None
    assert (record.status.state, record.status.observation.word) == (State.SUBMITTED, Word.UNKNOWN)


async def test_what_another_process_saw_first_is_told_here_too(store: Store, scheduler: FakeScheduler) -> None:
    """Kernel, server and command line share the records: whoever looks first writes, everybody tells his own watchers."""
    handle = submitted(store, scheduler)
    here, elsewhere = reconciler(store, scheduler), reconciler(store, scheduler)
    seen: list[State] = []
    stop = here.watch(handle, lambda record: seen.append(record.status.state))
    await until(lambda: seen)
    scheduler.finish(handle)
    elsewhere.take(handle, Observation(Word.ENDED, end=scheduler.jobs["u1"].end))
    await until(lambda: len(scheduler.calls) > 5)
    stop()
    assert seen[-1] is State.ENDED


async def test_towards_down_it_is_shown_as_ending_and_the_hubs_word_counts_as_the_schedulers(
    store: Store, scheduler: FakeScheduler
) -> None:
    handle = submitted(store, scheduler)
    poller = reconciler(store, scheduler)
    poller.take(handle, Observation(Word.READY))
    assert state_of(store, handle) is State.READY
    store.update("u1", lambda status: status, Target.DOWN)
    poller.take(handle, Observation(Word.GRANTED))
    assert state_of(store, handle) is State.ENDING
    assert poller.take(Handle("fake", "gone", "gone"), Observation(Word.READY)) is None


@pytest.mark.parametrize(
    ("state", "age_s", "cause"),
    [
        (State.SUBMITTED, ABSENT_S - 1, None),
        (State.SUBMITTED, ABSENT_S, "its submission never reached slurm"),
        (State.QUEUED, ABSENT_S, "slurm does not know it any more"),
    ],
)
def test_absence_is_an_end_only_when_it_lasts(tmp_path: Path, state: State, age_s: float, cause: str | None) -> None:
    record = Record(Handle("slurm", "u1", "fox"), ClusterSpec(gpus=1), 0.0, tmp_path, Status(state, 2))
    first = settle(record, Observation(Word.ABSENT, attempt=2), 1000.0)  # however old: one look is not enough
    assert (first.word, first.since_s) == (Word.ABSENT, 1000.0)
    absent = replace(record, status=transition(record.status, Target.UP, first))
    settled = settle(absent, Observation(Word.ABSENT, attempt=2), 1000.0 + age_s)
    if cause is None:
        assert settled.word is Word.ABSENT
    else:
        assert settled.end is not None
        assert (settled.word, settled.attempt, settled.end.ending, settled.end.cause) == (Word.ENDED, 2, Ending.FAILED, cause)


@pytest.mark.parametrize("word", [word for word in Word if word is not Word.ABSENT])
def test_everything_else_is_as_it_was_seen(tmp_path: Path, word: Word) -> None:
    record = Record(Handle("slurm", "u1", "fox"), ClusterSpec(gpus=1), 0.0, tmp_path)
    assert settle(record, seen := Observation(word), 1e9) is seen


def test_a_sentence_for_lists() -> None:
    assert describe(Status(State.ENDED, end=End(Ending.DONE, "its job is done", 1.0))) == "its job is done"
    assert describe(Status(State.QUEUED, observation=Observation(Word.QUEUED, reason="Waiting for 8 GPUs"))) == "Waiting for 8 GPUs"
    assert describe(Status()) == "submitted"

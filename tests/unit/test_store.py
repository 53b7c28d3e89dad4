"""Records: private, whole, and of any age readable or left alone."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_aicluster.errors import NotFound
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Ending, Observation, State, Status, Target, Word
from jupyter_aicluster.store import KEEP_ENDED, Record, Store

ENDED = Status(State.ENDED, 1, Observation(Word.ENDED), End(Ending.DONE, "its job is done", 5.0))


def record(store: Store, uid: str, name: str = "fox", created_s: float = 0.0, status: Status | None = None) -> Record:
    made = Record(Handle("local", uid, name), ClusterSpec(gpus=8), created_s, store.run(uid).path, status or Status())
    store.put(made)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def path_of(store: Store, uid: str) -> Path:
    return store.home / "records" / f"{uid}.json"


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_records_are_0600_in_a_0700_folder(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "home")
        record(store, "u1")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path_of(store, "u1").stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (store.home, store.home / "records")} == {0o700}


def test_a_record_comes_back_as_it_was(store: Store) -> None:
    spec = ClusterSpec(gpus=16, nodes=2, env=(("A", "a b\n$(x)"),), label="ünï")
    seen = Observation(Word.QUEUED, reason="Waiting", position=3, starts_at_s=9.5)
    made = Record(
        Handle("slurm", "u1", "owl"), spec, 12.5, Path("/shared/r"), Status(State.QUEUED, 2, seen), Target.DOWN, True, 2, "kernel"
    )
    store.put(made)
    assert store.get("u1") == made
    store.put(replace(made, status=ENDED))
    assert store.get("u1") == replace(made, status=ENDED)


@pytest.mark.parametrize(
    "damage",
    [
        {"state": "hibernating"},
        {"target": "sideways"},
        {"spec": {}},
        {"spec": {"gpus": 0}},
        {"spec": None},
        {"end": {"ending": "done"}},
        {"end": {"cause": "x"}},
        {"observation": 7},
        {"run": None},
    ],
    ids=str,
)
def test_one_record_that_means_nothing_here_hides_no_other(store: Store, damage: dict[str, object]) -> None:
    good, bad = record(store, "u1"), record(store, "u2", "owl")
    path_of(store, "u2").write_text(json.dumps(bad.to_json() | damage))
    path_of(store, "u3").write_text("{")
    assert store.get("u2") is None
    assert store.all() == [good]


def test_newest_first_and_only_living_names_are_taken(store: Store) -> None:
    record(store, "u1", "fox", 1.0)
    record(store, "u2", "owl", 3.0, ENDED)
    record(store, "u3", "elk", 2.0)
    assert [one.handle.uid for one in store.all()] == ["u2", "u3", "u1"]
    assert store.names() == {"fox", "elk"}


def test_found_by_name_or_uid_the_living_before_the_newest(store: Store) -> None:
    record(store, "u1", "fox", 1.0)
    record(store, "u2", "fox", 2.0, ENDED)
    record(store, "u3", "owl", 1.0, ENDED)
    record(store, "u4", "owl", 2.0, ENDED)
    assert [store.find(name).handle.uid for name in ("fox", "owl", "u3")] == ["u1", "u4", "u3"]
    with pytest.raises(NotFound, match="bee") as caught:
        store.find("bee")
    assert "fox" in caught.value.hint


def test_an_update_that_changes_nothing_writes_nothing(store: Store) -> None:
    record(store, "u1")
    before = path_of(store, "u1").stat().st_ino
    assert store.update("u1", lambda status: status) is not None
    assert path_of(store, "u1").stat().st_ino == before
    changed = store.update("u1", lambda status: ENDED, Target.DOWN)
    assert changed is not None
    assert store.get("u1") == changed
    assert (changed.status, changed.target) == (ENDED, Target.DOWN)
    assert store.update("gone", lambda status: ENDED) is None


def test_two_processes_that_update_lose_nothing(store: Store) -> None:
    record(store, "u1")
    other = threading.Thread(target=lambda: Store(store.home).update("u1", lambda status: ENDED))

    def slowly(status: Status) -> Status:
        if not status.ended:
            other.start()
            other.join(0.05)  # ends in between, or waits for us
        return status if status.ended else replace(status, state=State.QUEUED)

    store.update("u1", slowly)
    other.join(5)
    after = store.get("u1")
    assert after is not None
    assert after.status.ended


def test_the_oldest_ended_are_forgotten_with_their_run_folders(store: Store) -> None:
    for number in range(KEEP_ENDED + 3):
        record(store, f"u{number}", created_s=number, status=ENDED)
        store.run(f"u{number}").create()
    living = record(store, "alive", "owl", created_s=-1.0)
    store.tidy()
    kept = store.all()
    assert len(kept) == KEEP_ENDED + 1
    assert kept[-1] == living
    assert not any(store.run(f"u{number}").path.exists() for number in range(3))
    assert store.run("u3").path.exists()

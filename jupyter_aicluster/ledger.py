"""The queue for the GPUs of one machine: all or nothing, first come first served within a priority, safe against any kill.

A folder is the whole state. Every request is one JSON file, replaced whole, that also says which slots it holds, so there
is no second place to disagree with; every change is made under one file lock. The owner of a request keeps another lock,
``UID.lock``, for as long as it lives: the kernel frees it however the owner ends. The slots of a dead owner stay held until
no process that may still use them is left.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from jupyter_aicluster import procs
from jupyter_aicluster.protocol import is_id
from jupyter_aicluster.rundir import RunDir, read_json, write_json
from jupyter_aicluster.state import End, Ending

GRACE_S = 8.0  # how long what a dead owner left behind may take to end by itself


@dataclass(frozen=True, slots=True)
class Entry:
    """One request as its file has it. ``slots`` is empty while it waits; ``pid`` and ``start`` name its supervisor."""

    uid: str
    name: str
    gpus: int
    priority: int
    ticket: int
    run: str
    asked_s: float
    slots: tuple[str, ...] = ()
    pid: int | None = None
    start: str | None = None
    dead_s: float | None = None  # when somebody first found its owner dead

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self | None:
        known = {field.name for field in fields(cls)}
        try:
            return cls(**{**{key: value for key, value in data.items() if key in known}, "slots": tuple(data.get("slots", ()))})
        except TypeError:  # a file of something else
            return None


@dataclass(slots=True)
class Request:
    """Ownership of one request: it lives as long as the open lock file ``fd`` does, here or in a child that inherited it."""

    uid: str
    fd: int

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Who holds what and who waits, in the order in which they will be served."""

    slots: tuple[str, ...]
    holders: tuple[Entry, ...]
    waiting: tuple[Entry, ...]

    @property
    def free(self) -> tuple[str, ...]:
        held = {slot for entry in self.holders for slot in entry.slots}
        return tuple(slot for slot in self.slots if slot not in held)

    def find(self, uid: str) -> Entry | None:
        return next((entry for entry in (*self.holders, *self.waiting) if entry.uid == uid), None)

    def position(self, uid: str) -> int | None:
        """1 = served next; None for one that does not wait."""
        return next((place for place, entry in enumerate(self.waiting, 1) if entry.uid == uid), None)


class Ledger:
    """All methods are short, may be called from any process and thread, and block only while another one writes."""

    def __init__(self, root: Path, slots: Sequence[str]) -> None:
        self.root = root
        self.slots = tuple(slots)
        self._requests = root / "requests"

    def request(self, uid: str, gpus: int, *, priority: int = 0, name: str = "", run: Path | None = None) -> Request:
        """Queue up. The caller owns the request until it closes it or dies. ValueError for more GPUs than there are slots."""
        if not is_id(uid):
            raise ValueError(f"not a uid: {uid!r}")
        if not 0 < gpus <= len(self.slots):
            raise ValueError(f"{gpus} of {len(self.slots)} slots")
        with self._locked():
            if self._read(uid) is not None:
                raise ValueError(f"{uid} is already in the queue")
            ticket = 1 + max((entry.ticket for entry in self._entries()), default=0)
            descriptor = os.open(self._lock_file(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._write(Entry(uid, name or uid, gpus, priority, ticket, str(run or ""), time.time()))
            except BaseException:
                os.close(descriptor)
                raise
        return Request(uid, descriptor)

    def own(self, uid: str) -> bool:
        """Write down this process as the supervisor of the request, its owner until it dies; False if there is no such request.

        Its lock is a new one: of the one before, a process that the kernel forked in that moment may hold a copy for hours.
        """
        with self._locked():
            entry = self._read(uid)
            if entry is None:
                return False
            draft = self._requests / f".{uid}.lock"
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # stays open
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.replace(self._lock_file(uid))
            self._write(replace(entry, pid=os.getpid(), start=procs.start_time(os.getpid())))
            return True

    def try_grant(self, uid: str) -> tuple[str, ...] | None:
        """The slots, if ``uid`` is next and all of them are free; the same ones again if it has them already. KeyError: not queued."""
        with self._locked():
            entry = self._read(uid)
            if entry is None:
                raise KeyError(uid)
            if entry.slots:
                return entry.slots
            seen = self._snapshot()
            if seen.position(uid) != 1 or len(seen.free) < entry.gpus:
                return None
            granted = seen.free[: entry.gpus]
            self._write(replace(entry, slots=granted))
            return granted

    def release(self, uid: str) -> None:
        """Give everything back and leave the queue. Idempotent."""
        with self._locked():
            self._drop(uid)

    def snapshot(self) -> Snapshot:
        with self._locked():
            return self._snapshot()

    def sweep(self, gone: Callable[[Entry, float], bool] | None = None) -> list[Entry]:
        """Drop the requests whose owner died, once ``gone(entry, seconds it is known to be dead)`` agrees; default: `clear_away`."""
        agreed = gone or clear_away
        dropped = []
        with self._locked():
            self._tidy()
            for entry in self._entries():
                if self._owned(entry.uid):
                    continue
                now = time.time()
                if agreed(entry, now - (entry.dead_s or now)):
                    self._drop(entry.uid)
                    dropped.append(entry)
                elif entry.dead_s is None:
                    self._write(replace(entry, dead_s=now))
        return dropped

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._requests.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _snapshot(self) -> Snapshot:
        entries = sorted(self._entries(), key=lambda entry: (-entry.priority, entry.ticket))
        holders = tuple(entry for entry in entries if entry.slots)
        return Snapshot(self.slots, holders, tuple(entry for entry in entries if not entry.slots))

    def _entries(self) -> list[Entry]:
        found = (self._read(path.stem) for path in self._requests.glob("[!.]*.json"))
        return [entry for entry in found if entry is not None]

    def _read(self, uid: str) -> Entry | None:
        data = read_json(self._requests / f"{uid}.json")
        return None if data is None else Entry.from_json(data)

    def _write(self, entry: Entry) -> None:
        write_json(self._requests / f"{entry.uid}.json", asdict(entry))

    def _drop(self, uid: str) -> None:
        for path in (self._requests / f"{uid}.json", self._lock_file(uid)):
            path.unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove what a kill in the middle of a change left: nobody else changes anything now."""
        for draft in self._requests.glob(".*"):
            draft.unlink(missing_ok=True)
        for lock in self._requests.glob("*.lock"):
            if not lock.with_suffix(".json").exists():
                lock.unlink(missing_ok=True)

    def _lock_file(self, uid: str) -> Path:
        return self._requests / f"{uid}.lock"

    def _owned(self, uid: str) -> bool:
        with suppress(FileNotFoundError):
            descriptor = os.open(self._lock_file(uid), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)
        return False


def clear_away(entry: Entry, dead_for_s: float) -> bool:
    """Whether nothing of a dead owner's cluster is left. Its processes get `GRACE_S` to end by themselves, then they are killed.

    Removes its temp folders and, where the agent could not write an end record any more, writes one.
    """
    if dead_for_s < GRACE_S:
        if procs.any_marked(entry.uid):
            return False
    elif procs.kill_marked(entry.uid, timeout_s=0.5):
        return False
    procs.remove_tmp(entry.uid)
    run = RunDir(Path(entry.run))
    if entry.run and run.path.is_dir() and not run.end.exists():
        cause = "its supervisor process was killed" if entry.slots else "its supervisor process ended before it got any GPU"
        write_json(run.end, End(Ending.FAILED, cause, time.time(), evidence=run.tail(), gpus=len(entry.slots)).to_json())
    return True

"""The queue for GPU slots: all or nothing, in order, and whatever is killed at whatever moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from jupyter_aicluster import ledger as module
from jupyter_aicluster import procs
from jupyter_aicluster.ledger import Entry, Ledger, Request, clear_away
from jupyter_aicluster.protocol import Submission
from jupyter_aicluster.rundir import RunDir, read_json

SLOTS = tuple(f"sim{number}" for number in range(8))


@pytest.fixture
def queue(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger", SLOTS)


@pytest.fixture
def owned() -> Iterator[list[Request]]:
    """Requests that live as long as the test."""
    requests: list[Request] = []
    yield requests
    for request in requests:
        with suppress(OSError):  # closed by the test
            request.close()


def at_once(entry: Entry, dead_for_s: float) -> bool:
    return True


def test_all_or_nothing(queue: Ledger, owned: list[Request]) -> None:
    owned += [queue.request("a", 6), queue.request("b", 4)]
    assert queue.try_grant("a") == SLOTS[:6]
    assert queue.try_grant("b") is None
    assert queue.snapshot().free == SLOTS[6:]
    queue.release("a")
    assert queue.try_grant("b") == SLOTS[:4]


def test_a_grant_asked_for_again_is_the_same(queue: Ledger, owned: list[Request]) -> None:
    owned.append(queue.request("a", 3))
    assert queue.try_grant("a") == queue.try_grant("a") == SLOTS[:3]


def test_nobody_passes_the_head_of_the_queue(queue: Ledger, owned: list[Request]) -> None:
    owned += [queue.request("a", 6), queue.request("large", 8), queue.request("small", 1)]
    queue.try_grant("a")
    assert queue.try_grant("small") is None  # two slots are free, but large is first
    seen = queue.snapshot()
    assert [seen.position(uid) for uid in ("a", "large", "small")] == [None, 1, 2]


def test_priority_comes_first_then_time(queue: Ledger, owned: list[Request]) -> None:
    owned += [queue.request("low", 1), queue.request("high", 1, priority=5), queue.request("later", 1, priority=5)]
    assert [entry.uid for entry in queue.snapshot().waiting] == ["high", "later", "low"]
    assert queue.try_grant("later") is None
    assert queue.try_grant("high") is not None


def test_release_and_unknown(queue: Ledger, owned: list[Request]) -> None:
    owned.append(queue.request("a", 1))
    for _ in range(2):
        queue.release("a")
    with pytest.raises(KeyError):
        queue.try_grant("a")
    assert not queue.own("a")
    assert list((queue.root / "requests").iterdir()) == []


@pytest.mark.parametrize(("uid", "gpus"), [("a", 9), ("a", 0), ("../a", 1), ("a b", 1)])
def test_impossible_requests_leave_no_trace(queue: Ledger, uid: str, gpus: int) -> None:
    with pytest.raises(ValueError, match=r"slots|uid"):
        queue.request(uid, gpus)
    assert queue.snapshot().waiting == ()


def test_the_same_uid_twice_is_refused(queue: Ledger, owned: list[Request]) -> None:
    owned.append(queue.request("a", 1))
    with pytest.raises(ValueError, match="already"):
        queue.request("a", 1)


def test_the_living_are_never_swept(queue: Ledger, owned: list[Request]) -> None:
    owned += [queue.request("a", 1), queue.request("b", 1)]
    queue.try_grant("a")
    assert queue.sweep(at_once) == []


def test_slots_of_the_dead_stay_held_until_nothing_is_left_of_them(
    queue: Ledger, owned: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    queue.request("a", 8).close()
    queue.try_grant("a")
    owned.append(queue.request("b", 1))
    dead_for = []

    def gone(entry: Entry, dead_for_s: float) -> bool:
        dead_for.append(dead_for_s)
        return dead_for_s >= 5

    for _ in range(3):
        assert queue.sweep(gone) == [] or now[0] == 1006
        assert (queue.try_grant("b") is None) == (now[0] < 1006)
        now[0] += 3
    assert dead_for == [0, 3, 6]


def test_ownership_passes_to_a_child_that_inherits_the_lock(queue: Ledger) -> None:
    request = queue.request("a", 1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[request.fd]) as child:
        request.close()
        assert queue.sweep(at_once) == []
        child.kill()
        child.wait()
        assert [entry.uid for entry in queue.sweep(at_once)] == ["a"]


def test_own_names_the_process(queue: Ledger, owned: list[Request]) -> None:
    owned.append(queue.request("a", 1, name="fox", run=Path("/runs/a")))
    assert queue.own("a")
    entry = queue.snapshot().find("a")
    assert entry is not None
    assert (entry.pid, entry.start, entry.name, entry.run) == (os.getpid(), procs.start_time(os.getpid()), "fox", "/runs/a")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"uid": 3}', '{"some": "thing"}'])
def test_a_file_of_something_else_is_nobody(queue: Ledger, text: str) -> None:
    queue.snapshot()
    (queue.root / "requests" / "x.json").write_text(text)
    assert queue.snapshot().waiting == ()


def test_files_are_private(queue: Ledger, owned: list[Request]) -> None:
    owned.append(queue.request("a", 1))
    folder = queue.root / "requests"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


# ---- clearing up after a dead owner


@pytest.fixture
def stray() -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries the mark of cluster "strayuid"."""
    with subprocess.Popen(["sleep", "60"], env={Submission.UID_ENV: "strayuid"}) as process:
        yield process
        process.kill()


def dead(run: str = "", slots: tuple[str, ...] = SLOTS) -> Entry:
    return Entry("strayuid", "fox", 8, 0, 1, run, 0.0, slots)


def test_what_a_dead_owner_left_gets_its_time_and_is_then_killed(stray: subprocess.Popen[bytes]) -> None:
    assert not clear_away(dead(), 0.0)
    assert stray.poll() is None
    assert clear_away(dead(), module.GRACE_S)
    assert stray.wait(5) == -signal.SIGKILL


def test_an_end_record_is_written_only_where_there_is_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert clear_away(dead(str(tmp_path)), 0.0)
    end = read_json(run.end)
    assert end is not None
    assert (end["ending"], end["cause"], end["gpus"]) == ("failed", "its supervisor process was killed", 8)
    run.end.write_text('{"ending": "done"}')
    assert clear_away(dead(str(tmp_path)), 0.0)
    assert read_json(run.end) == {"ending": "done"}


def test_temp_folders_of_the_dead_are_removed() -> None:
    folder = procs.node_tmp("strayuid", 1)
    folder.mkdir(exist_ok=True)
    assert clear_away(dead(), 0.0)
    assert not folder.exists()


# ---- killed anywhere


class Killed(BaseException):
    """The process ends here. Nothing may catch it."""


@dataclass
class Fuse:
    """Kills at the n-th step that touches the disk."""

    steps: int | None = None

    def burn(self) -> None:
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise Killed


class Kills(RuleBasedStateMachine):
    """Clusters come, are granted, release and die, each possibly killed in the middle of any step; checked against a model."""

    uids = Bundle("uids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.queue = Ledger(Path(self.folder.name), SLOTS)
        self.alive: dict[str, Request] = {}
        self.wanted: dict[str, tuple[int, int, int]] = {}  # uid → (-priority, order, gpus)
        self.granted: dict[str, tuple[str, ...]] = {}
        self.count = 0
        self.fuse = Fuse()
        self.patch = pytest.MonkeyPatch()
        for name in ("replace", "unlink", "fdopen"):
            self.patch.setattr(os, name, self.fused(getattr(os, name)))

    def fused(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self.fuse.burn()
            return real(*args, **kwargs)

        return step

    def teardown(self) -> None:
        self.patch.undo()
        for request in self.alive.values():
            request.close()
        self.folder.cleanup()

    @rule(target=uids, gpus=st.integers(1, 8), priority=st.integers(0, 2), kill_at=st.none() | st.integers(0, 3))
    def ask(self, gpus: int, priority: int, kill_at: int | None) -> str:
        self.count += 1
        uid = f"u{self.count}"
        self.fuse.steps = kill_at
        with suppress(Killed):
            self.alive[uid] = self.queue.request(uid, gpus, priority=priority)
        self.fuse.steps = None
        self.wanted[uid] = (-priority, self.count, gpus)
        return uid

    @rule(uid=uids, kill_at=st.none() | st.integers(0, 3))
    def try_grant(self, uid: str, kill_at: int | None) -> None:
        if uid not in self.alive:
            return
        first = [other.uid for other in self.queue.snapshot().waiting][:1]
        self.fuse.steps = kill_at
        try:
            slots = self.queue.try_grant(uid)
        except Killed:
            self.die(uid)
            return
        finally:
            self.fuse.steps = None
        if slots is not None and uid not in self.granted:
            assert first == [uid], "passed the head of the queue"
            assert len(slots) == self.wanted[uid][2], "not all or nothing"
            self.granted[uid] = slots
        elif slots is not None:
            assert slots == self.granted[uid]

    @rule(uid=consumes(uids), kill_at=st.none() | st.integers(0, 2))
    def release(self, uid: str, kill_at: int | None) -> None:
        self.fuse.steps = kill_at
        with suppress(Killed):
            self.queue.release(uid)
        self.fuse.steps = None
        self.die(uid)

    @rule(uid=consumes(uids))
    def kill(self, uid: str) -> None:
        self.die(uid)

    @rule(agree=st.booleans(), kill_at=st.none() | st.integers(0, 3))
    def sweep(self, agree: bool, kill_at: int | None) -> None:
        self.fuse.steps = kill_at
        with suppress(Killed):
            dropped = self.queue.sweep(lambda entry, dead_for_s: agree)
            assert not {entry.uid for entry in dropped} & set(self.alive), "a living one was swept"
        self.fuse.steps = None

    @precondition(lambda self: not self.alive)
    @rule()
    def everything_comes_back(self) -> None:
        self.queue.sweep(at_once)
        assert self.queue.snapshot().free == SLOTS
        assert list((self.queue.root / "requests").iterdir()) == []

    @invariant()
    def no_slot_is_held_twice_and_the_living_keep_theirs(self) -> None:
        seen = self.queue.snapshot()
        held = [slot for entry in seen.holders for slot in entry.slots]
        assert len(held) == len(set(held))
        for uid in self.alive:
            entry = seen.find(uid)
            assert entry is not None
            assert entry.slots == self.granted.get(uid, ())
        assert [entry.uid for entry in seen.waiting] == sorted((entry.uid for entry in seen.waiting), key=lambda uid: self.wanted[uid][:2])

    def die(self, uid: str) -> None:
        self.granted.pop(uid, None)
        if (request := self.alive.pop(uid, None)) is not None:
            request.close()


Kills.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestKilledAnywhere = Kills.TestCase

CHILD = """
import fcntl, sys
from pathlib import Path
from jupyter_aicluster.ledger import Ledger
root, uid, gpus = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
slots = [f"sim{n}" for n in range(8)]
claims = {slot: open(root.parent / slot, "w") for slot in slots}  # opened first: the kernel closes them before the request's lock
queue = Ledger(root, slots)
queue.request(uid, gpus)
while (mine := queue.try_grant(uid)) is None:
    queue.sweep(lambda entry, dead_for_s: True)
for slot in mine:
    fcntl.flock(claims[slot], fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if anybody else has the slot
for slot in mine:
    fcntl.flock(claims[slot], fcntl.LOCK_UN)
queue.release(uid)
"""


def test_processes_killed_at_random_never_share_or_lose_a_slot(queue: Ledger) -> None:
    rng = random.Random(7)
    children = []
    for number in range(12):
        command = [sys.executable, "-c", CHILD, str(queue.root), f"p{number}", str(rng.randint(1, 8))]
        children.append(subprocess.Popen(command, stderr=subprocess.PIPE))
    victims, others = children[::3], [child for number, child in enumerate(children) if number % 3]
    for victim in victims:
        with suppress(subprocess.TimeoutExpired):
            victim.wait(rng.uniform(0.02, 0.1))
        victim.kill()
        victim.communicate()
    for other in others:
        _, errors = other.communicate(timeout=60)
        assert other.returncode == 0, errors.decode()
    queue.sweep(at_once)
    assert queue.snapshot().free == SLOTS


def test_a_copy_of_the_first_lock_in_a_forked_process_keeps_nothing_once_the_supervisor_is_dead(tmp_path: Path) -> None:
    queue = Ledger(tmp_path, ("s0",))
    request = queue.request("a", 1)  # this process is the kernel: what it forks now inherits the lock
    supervisor = os.fork()
    if supervisor == 0:
        os._exit(0 if queue.own("a") and queue.try_grant("a") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1]) == 0
    assert queue.sweep(lambda entry, dead_for_s: True) != []
    assert queue.snapshot().free == ("s0",)
    request.close()

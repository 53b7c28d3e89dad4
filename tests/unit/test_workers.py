"""Drivers as processes: which run, how they ended. The driver here is a short script under the real one's name."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from jupyter_aicluster.agent.logs import Tailer
from jupyter_aicluster.agent.workers import Drivers
from tests.unit.hubs import make_run, submission

SCRIPT = """
import json, os, signal, sys, time
interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "interruptible": interruptible}))
sys.stdout.flush()
if os.environ["AICLUSTER_SESSION"] == "brief":
    sys.exit(3)
if os.environ["AICLUSTER_SESSION"].startswith("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
if os.environ["AICLUSTER_SESSION"] == "forking" and os.environ["AICLUSTER_DRIVER_START"] == "1":
    import subprocess
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    print("child", child.pid, flush=True)
    sys.exit(1)
time.sleep(60)
"""


RANK = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}


@pytest.fixture
def tailer() -> Tailer:
    return Tailer()


@pytest.fixture
async def drivers(tmp_path: Path, tailer: Tailer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Drivers]:
    package = tmp_path / "fake" / "jupyter_aicluster" / "agent"
    package.mkdir(parents=True)
    for name, text in {"driver.py": SCRIPT, "__init__.py": "", "../__init__.py": ""}.items():
        (package / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.setenv("RAY_ADDRESS", "stale:1")
    (tmp_path / "work").mkdir()
    wanted = submission(working_dir=str(tmp_path / "work"))
    made = Drivers(make_run(tmp_path / "run", wanted), wanted, tmp_path, tailer)
    yield made
    await made.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def log(folder: Path, session: str = "main", start: int = 1) -> Path:
    return folder / f"driver-{session}-{start}.log"


async def test_a_driver_gets_its_clusters_address_token_and_folder(drivers: Drivers, tailer: Tailer, tmp_path: Path) -> None:
    drivers.apply({"main": 1}, "10.0.0.1:20001", 2)
    await until(lambda: b"\n" in log(tmp_path).read_bytes())
    said = json.loads(log(tmp_path).read_text())
    env = said["env"]
    assert said["argv"] == ["--run", str(tmp_path / "run"), "--session", "main"]
    assert said["cwd"] == str(tmp_path / "work")
    assert said["interruptible"]
    assert (env["RAY_ADDRESS"], env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == (
        "10.0.0.1:20001",
        "token",
        str(tmp_path / "run/secrets/ray.token"),
    )
    assert (env["AICLUSTER_SESSION"], env["AICLUSTER_DRIVER_START"], env["AICLUSTER_ATTEMPT"]) == ("main", "1", "2")
    assert "10.0.0.1" in env["no_proxy"].split(",")
    assert not any((tmp_path / "run" / "secrets" / "ray.token").read_text() in value for value in env.values())
    assert [stream for stream, _, _ in tailer.pending()] == ["driver-main"]


async def test_said_again_nothing_happens_another_start_is_a_fresh_process(drivers: Drivers, tailer: Tailer, tmp_path: Path) -> None:
    drivers.apply({"main": 1}, "a:1", 1)
    (first,) = drivers.pids()
    drivers.apply({"main": 1}, "a:1", 1)
    assert drivers.pids() == [first]

    def applied() -> bool:
        drivers.apply({"main": 2}, "a:1", 1)
        return drivers.status()["main"] == {"start": 2, "state": "running"}

    await until(applied)
    assert drivers.pids() != [first]
    await until(lambda: log(tmp_path, start=2).exists() and log(tmp_path, start=2).read_bytes())
    assert "driver-main-2" in [stream for stream, _, _ in tailer.pending()]


async def test_how_they_ended_is_said_until_another_start_is_wanted(drivers: Drivers) -> None:
    drivers.apply({"brief": 1, "main": 1}, "a:1", 1)
    await until(lambda: drivers.status()["brief"]["state"] == "exited")
    assert drivers.status()["brief"] == {"start": 1, "state": "exited", "code": 3}
    (pid,) = drivers.pids()
    os.kill(pid, 9)
    await until(lambda: drivers.status()["main"] == {"start": 1, "state": "exited", "signal": 9})
    drivers.apply({"brief": 1, "main": 1}, "a:1", 1)  # the hub has not heard yet
    assert drivers.pids() == []


async def test_what_is_not_wanted_is_killed(drivers: Drivers) -> None:
    drivers.apply({"main": 1}, "a:1", 1)
    drivers.apply({}, "a:1", 1)
    await until(lambda: drivers.status()["main"] == {"start": 1, "state": "exited", "signal": 9})


async def test_all_are_ended_also_those_deaf_to_sigterm(drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_aicluster.agent.workers.GRACE_S", 0.05)
    drivers.apply({"main": 1, "stubborn": 1}, "a:1", 1)
    await until(lambda: b"deaf" in log(tmp_path, "stubborn").read_bytes())
    pids = drivers.pids()
    await drivers.stop()
    assert drivers.status() == {}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_many_deaf_to_sigterm_share_one_grace(drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_aicluster.agent.workers.GRACE_S", 0.05)
    given: list[float] = []
    wait = subprocess.Popen.wait

    def spy(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        given.extend([] if timeout is None else [timeout])
        return wait(process, timeout)

    names = ["stubborn", "stubborn-2", "stubborn-3"]
    drivers.apply(dict.fromkeys(names, 1), "a:1", 1)
    for name in names:
        await until(lambda name=name: b"deaf" in log(tmp_path, name).read_bytes())  # type: ignore[misc]
    monkeypatch.setattr(subprocess.Popen, "wait", spy)
    await drivers.stop()
    assert len(given) == 3
    assert sum(given) < 0.1


async def test_what_an_ended_driver_left_running_ends_before_the_next_one_starts(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AICLUSTER_UID", drivers._submission.uid)
    drivers.apply({"forking": 1}, "a:1", 1)
    await until(lambda: b"child" in log(tmp_path, "forking").read_bytes())
    child = int(log(tmp_path, "forking").read_text().split()[-1])
    assert Path(f"/proc/{child}").exists()

    def applied() -> bool:
        drivers.apply({"forking": 2}, "a:1", 1)
        return bool(drivers.status()["forking"]["start"] == 2)

    await until(applied)
    await until(lambda: not Path(f"/proc/{child}").exists())


async def test_a_driver_that_cannot_be_started_says_so_and_counts_as_ended(drivers: Drivers, tailer: Tailer, tmp_path: Path) -> None:
    (tmp_path / "work").rmdir()
    drivers.apply({"main": 1}, "a:1", 1)
    assert drivers.status() == {"main": {"start": 1, "state": "exited", "code": 127}}
    assert drivers.pids() == []
    [(stream, _, text)] = tailer.pending()
    assert stream == "driver-main"
    assert b"could not be started" in text
    assert str(tmp_path / "work").encode() in text
    (tmp_path / "work").mkdir()
    drivers.apply({"main": 2}, "a:1", 1)
    assert drivers.status()["main"] == {"start": 2, "state": "running"}


@pytest.mark.parametrize("proxy", [False, True])
async def test_a_rank_has_its_environment_its_log_and_its_simulated_gpu(
    drivers: Drivers, tailer: Tailer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: bool
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    if proxy:
        monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "sim4,sim5")
    (tmp_path / "holders").mkdir()
    drivers.apply({"main.rank-3": 2}, "10.0.0.1:20001", 1, {"main.rank-3": RANK})
    await until(lambda: b"\n" in log(tmp_path, "main.rank-3", 2).read_bytes())
    said = json.loads(log(tmp_path, "main.rank-3", 2).read_text())
    assert said["env"].items() >= (RANK | {"CUDA_VISIBLE_DEVICES": "sim4,sim5", "AICLUSTER_SESSION": "main.rank-3"}).items()
    assert int(said["env"]["OMP_NUM_THREADS"]) >= 1
    assert ("no_proxy" in said["env"]) is proxy
    assert said["argv"][-2:] == ["--rank", "3"]
    assert [stream for stream, _, _ in tailer.pending()] == ["rank-3-2"]
    assert [path.read_text() for path in (tmp_path / "holders").iterdir()] == ["sim5"]
    assert drivers.pids() == []  # it does not count for the node's first GPU

    def gone() -> bool:
        drivers.apply({}, "10.0.0.1:20001", 1)
        return not drivers.status()

    await until(gone)

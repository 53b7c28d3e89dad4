"""The node program against a real hub, as far as it goes without Ray: node 1 of 2, whose head never comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from jupyter_aicluster.agent import node as module
from jupyter_aicluster.agent.node import NodeProgram
from jupyter_aicluster.events import Kind
from jupyter_aicluster.procs import node_tmp, remove_tmp
from jupyter_aicluster.protocol import Submission
from jupyter_aicluster.rundir import RunDir
from tests.unit.hubs import Served, make_run, serving, submission


@pytest.fixture
def wanted() -> Submission:
    return submission(retries=1)


@pytest.fixture
def run(tmp_path: Path, wanted: Submission) -> RunDir:
    return make_run(tmp_path / "run", wanted)


@pytest.fixture
async def program(run: RunDir, wanted: Submission, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeProgram]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "sim4,sim5")
    for name, value in {"BEAT_S": 0.02, "SHIP_S": 0.02, "APPLY_S": 0.01, "SAMPLE_S": 0.02}.items():
        monkeypatch.setattr(module, name, value)
    made = NodeProgram(run, wanted, 1)
    yield made
    made.gpus.close()
    remove_tmp(wanted.uid)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def heard(hub: Served, kind: Kind) -> list[bytes]:
    return [line for line in hub.hub.journal.path(1).read_bytes().splitlines() if f'"k":"{kind}"'.encode() in line]


async def test_it_connects_ships_logs_and_ends_when_told(run: RunDir, wanted: Submission, program: NodeProgram, tmp_path: Path) -> None:
    living = asyncio.create_task(program.live())  # before there is a hub
    await asyncio.sleep(0.03)
    log = tmp_path / "some.log"
    program.tailer.follow("worker-1.out", log)
    async with serving(run, wanted, tmp_path / "scratch") as hub:
        await until(lambda: 1 in hub.brain.nodes)
        assert {str(gpu["index"]) for gpu in hub.brain.nodes[1].beat.gpus} == {"sim4", "sim5"}
        assert hub.brain.nodes[1].beat.ray == "absent"  # it waits for the head
        log.write_bytes(b"first\n")
        await until(lambda: hub.hub.logs.read(1, 1, "worker-1.out") == b"first\n")
        log.write_bytes(b"first\nlast words\n")
        await hub.ask("POST", "/v1/stop")
        async with asyncio.timeout(10):
            assert await living == 0
        assert hub.hub.logs.read(1, 1, "worker-1.out") == b"first\nlast words\n"
        assert hub.brain.all_left
        assert program.leaving == "the cluster ends"


async def test_leaving_is_said_with_its_reason_and_the_first_stands(
    run: RunDir, wanted: Submission, program: NodeProgram, tmp_path: Path
) -> None:
    async with serving(run, wanted, tmp_path / "scratch") as hub:
        living = asyncio.create_task(program.live())
        await until(lambda: 1 in hub.brain.nodes)
        assert node_tmp(wanted.uid, 1).stat().st_mode & 0o777 == 0o700
        program.leave("its scheduler ended it (SIGTERM)")
        program.leave("something later")
        async with asyncio.timeout(10):
            await living
        assert hub.brain.attempt == 2
        assert b"its scheduler ended it (SIGTERM)" in hub.hub.journal.path(2).read_bytes()
        assert any(b'"left"' in line for line in heard(hub, Kind.NODE))


async def test_without_its_hub_it_fences_itself(
    run: RunDir, wanted: Submission, program: NodeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FENCE_S", 0.2)
    monkeypatch.setattr(module, "LAST_WORDS_S", 0.1)
    async with serving(run, wanted, tmp_path / "scratch") as hub:
        living = asyncio.create_task(program.live())
        await until(lambda: 1 in hub.brain.nodes)
        assert not living.done()
    async with asyncio.timeout(10):
        await living
    assert program.leaving.startswith("its hub was silent for")


async def test_it_follows_the_hub_to_the_next_attempt(run: RunDir, wanted: Submission, program: NodeProgram, tmp_path: Path) -> None:
    log = tmp_path / "some.log"
    log.write_bytes(b"of the first attempt")
    async with serving(run, wanted, tmp_path / "scratch") as hub:
        program.tailer.follow("worker-1.out", log)
        living = asyncio.create_task(program.live())
        await until(lambda: hub.hub.logs.read(1, 1, "worker-1.out"))
        hub.brain._fall("node 0 left")
        await until(lambda: hub.brain.nodes[1].beat.attempt == 2)
        assert list(hub.hub.logs.streams(2)) == []
        program.leave("end of the test")
        async with asyncio.timeout(10):
            await living


async def test_a_loop_that_breaks_ends_the_node_and_is_named(
    run: RunDir,
    wanted: Submission,
    program: NodeProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken() -> None:
        raise RuntimeError("a fault of ours")

    async with serving(run, wanted, tmp_path / "scratch") as hub:
        living = asyncio.create_task(program.live())
        await until(lambda: 1 in hub.brain.nodes)
        monkeypatch.setattr(program.ray, "look", broken)
        async with asyncio.timeout(10):
            await living
        assert "a fault of ours" in program.leaving
        assert "a fault of ours" in capsys.readouterr().err
        assert hub.brain.attempt == 2


async def test_what_ended_processes_wrote_last_is_shipped_and_nothing_is_started_again(
    run: RunDir, wanted: Submission, program: NodeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, stopped = list[bool](), list[bool]()
    last = tmp_path / "last.log"
    monkeypatch.setattr(program.ray, "start", lambda *_: starts.append(bool(stopped)))

    async def stop() -> None:
        stopped.append(True)
        last.write_bytes(b"last words\n")  # as the driver ends
        program.tailer.follow("driver-main", last)
        await asyncio.sleep(0.05)

    monkeypatch.setattr(program.drivers, "stop", stop)
    async with serving(run, wanted, tmp_path / "scratch") as hub:
        living = asyncio.create_task(program.live())
        await until(lambda: 1 in hub.brain.nodes)
        monkeypatch.setattr(hub.brain, "_may_start", lambda k: True)
        await until(lambda: starts)
        program.leave("its scheduler ended it (SIGTERM)")
        async with asyncio.timeout(10):
            assert await living == 0
        assert hub.hub.logs.read(1, 1, "driver-main") == b"last words\n"
        await asyncio.sleep(0.03)
        assert not any(starts)

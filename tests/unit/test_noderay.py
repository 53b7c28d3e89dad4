"""Ray on one node over tries and attempts. The program here prints what `ray start` prints; real Ray is tested elsewhere."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_aicluster.agent import noderay
from jupyter_aicluster.agent.logs import Tailer
from jupyter_aicluster.agent.noderay import PORT_TRIES, NodeRay
from jupyter_aicluster.agent.ports import NoPorts, PortBlock
from jupyter_aicluster.procs import node_tmp, remove_tmp
from jupyter_aicluster.protocol import RayState
from tests.unit.hubs import make_run, submission

CLASH = "print('ValueError: Ray component metrics is trying to use a port number 20009 that is used by other components.'); sys.exit(1)"
UP = "print('Ray runtime started.', flush=True); time.sleep(60)"
HANG = "print('connecting', flush=True); time.sleep(60)"


class Program:
    """An executable that does as told on its n-th start."""

    def __init__(self, folder: Path) -> None:
        self.path, self.told, self.starts = folder / "ray", folder / "told.py", folder / "starts"
        code = f"import sys, time\nopen({str(self.starts)!r}, 'a').write(repr(sys.argv) + '\\n')\nexec(open({str(self.told)!r}).read())\n"
        self.path.write_text(f"#!{sys.executable} -S\n{code}")
        self.path.chmod(0o700)

    def does(self, *acts: str) -> None:
        lines = [f"n = len(open({str(self.starts)!r}).readlines())"]
        lines += [f"if n == {n}: {act}" for n, act in enumerate(acts[:-1], 1)] + [f"if n >= {len(acts)}: {acts[-1]}"]
        self.told.write_text("\n".join(lines))

    def arguments(self) -> list[list[str]]:
        return [ast.literal_eval(line) for line in self.starts.read_text().splitlines()]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    made = Program(tmp_path)
    monkeypatch.setattr(noderay, "_ray_program", lambda: str(made.path))
    return made


@pytest.fixture
def tailer() -> Tailer:
    return Tailer()


@pytest.fixture
def ray(tmp_path: Path, tailer: Tailer) -> Iterator[NodeRay]:
    wanted = submission(spec={"gpus": 4, "cpus_per_node": 3}, gpus_per_node=2)
    temp = node_tmp(wanted.uid, 0)  # short, for Ray's sockets
    temp.mkdir(mode=0o700)
    made = NodeRay(make_run(tmp_path / "run", wanted), wanted, 0, temp, tailer, {"EXTRA": "1"})
    yield made
    end(made)
    made.reset()
    remove_tmp(wanted.uid)


def end(ray: NodeRay) -> None:
    if ray._process is not None:
        ray._process.process.kill()
        ray._process.process.wait()


def start(ray: NodeRay, gcs_address: str = "", attempt: int = 1) -> None:
    ray.start(gcs_address, attempt)


def wait_for(ray: NodeRay, state: RayState) -> None:
    deadline = time.monotonic() + 10
    while ray.state != state:
        assert time.monotonic() < deadline, f"{ray.state} {ray.error}"
        ray.look()
        time.sleep(0.01)


def flags(arguments: list[str]) -> dict[str, str]:
    return dict(flag.partition("=")[::2] for flag in arguments[1:])


def test_a_head_that_comes_up_says_where_it_is(ray: NodeRay, program: Program, tailer: Tailer) -> None:
    program.does(UP)
    assert (ray.state, ray.address) == (RayState.ABSENT, "")
    start(ray)
    start(ray)  # said again
    wait_for(ray, RayState.UP)
    (arguments,) = program.arguments()
    told = flags(arguments)
    assert ray.address == f"{told['--node-ip-address']}:{told['--port']}"
    assert ray.dashboard == f"127.0.0.1:{told['--dashboard-port']}"
    assert ray.client_server.endswith(f":{told['--ray-client-server-port']}")
    assert (told["--num-gpus"], told["--num-cpus"]) == ("2", "3")
    assert [(stream, data) for stream, _, data in tailer.pending()] == [("ray", b"Ray runtime started.\n")]


def test_a_lost_port_is_tried_again_with_another_block(ray: NodeRay, program: Program) -> None:
    program.does(CLASH, UP)
    start(ray)
    wait_for(ray, RayState.UP)
    first, second = (flags(arguments)["--port"] for arguments in program.arguments())
    assert first != second
    assert ray.error == ""


def test_but_not_for_ever_and_the_clash_is_named(ray: NodeRay, program: Program) -> None:
    program.does(CLASH)
    start(ray)
    wait_for(ray, RayState.FAILED)
    assert len(program.arguments()) == PORT_TRIES
    assert "port number 20009" in ray.error
    start(ray)  # what failed is not started again in the same attempt
    ray.look()
    assert len(program.arguments()) == PORT_TRIES


def test_another_fault_is_not_tried_again(ray: NodeRay, program: Program) -> None:
    program.does("print('Unable to connect to GCS at 10.249.16.183:6379'); sys.exit(1)")
    start(ray, "10.249.16.183:6379")
    wait_for(ray, RayState.FAILED)
    assert len(program.arguments()) == 1
    assert ray.error == "ray start ended with exit code 1\nUnable to connect to GCS at 10.249.16.183:6379"


def test_one_that_falls_later_has_fallen(ray: NodeRay, program: Program) -> None:
    program.does(UP)
    start(ray)
    wait_for(ray, RayState.UP)
    end(ray)
    wait_for(ray, RayState.FAILED)
    assert "signal 9" in ray.error


def test_the_next_attempt_starts_from_nothing(ray: NodeRay, program: Program) -> None:
    program.does(UP, HANG)
    start(ray)
    wait_for(ray, RayState.UP)
    end(ray)
    ray.reset()
    assert (ray.state, ray.error, ray.address) == (RayState.ABSENT, "", "")
    start(ray, attempt=2)
    deadline = time.monotonic() + 10
    while len(program.arguments()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    ray.look()
    assert ray.state == RayState.STARTING  # the first attempt's word is not the second's


def test_a_temp_folder_that_is_too_long_is_said_before_ray_is_started(tmp_path: Path, program: Program, tailer: Tailer) -> None:
    temp = tmp_path / ("long" * 20)
    temp.mkdir()
    wanted = submission()
    ray = NodeRay(make_run(tmp_path / "run", wanted), wanted, 0, temp, tailer, {})
    start(ray)
    assert ray.state == RayState.FAILED
    assert "too long for Ray's sockets" in ray.error
    assert not program.starts.exists()


def test_no_ports_on_the_second_try_is_a_failure_not_a_crash(ray: NodeRay, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.does(CLASH)
    start(ray)
    monkeypatch.setattr(noderay, "claim_block", _none_left)
    wait_for(ray, RayState.FAILED)
    assert "no block of free ports" in ray.error


def _none_left(avoid: list[int]) -> PortBlock:
    raise NoPorts("no block of free ports is left on this node", hint="stop a cluster")


def test_workers_logs_are_followed_by_pid(ray: NodeRay, program: Program, tailer: Tailer) -> None:
    program.does(UP)
    start(ray)
    wait_for(ray, RayState.UP)
    logs = ray._temp / "ray" / "session_2026-01-01_00-00-00_000000_1" / "logs"
    logs.mkdir(parents=True)
    for name in ("worker-0a1b-01000000-1234.out", "worker-0a1b-01000000-1234.err", "raylet.out", "worker-0a1b-01000000-1234.out.1"):
        (logs / name).write_text(name)
    ray.follow_workers()
    assert {stream for stream, _, _ in tailer.pending()} == {"ray", "worker-1234.out", "worker-1234.err"}


def test_a_temp_folder_of_somebody_else_is_the_nodes_error_and_nothing_in_it_is_touched(
    tmp_path: Path, ray: NodeRay, program: Program
) -> None:
    program.does(UP)
    (tmp_path / "precious" / "ray").mkdir(parents=True)
    temp = ray._temp
    temp.rmdir()
    temp.symlink_to(tmp_path / "precious")
    ray.reset()
    start(ray)
    assert ray.state == RayState.FAILED
    assert f"{temp} is not ours" in ray.error
    assert (tmp_path / "precious" / "ray").is_dir()
    temp.unlink()

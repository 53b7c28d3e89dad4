"""Readings of GPUs: NVML in a child process against a scripted library, and simulated GPUs against real processes."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_aicluster.agent import simgpus
from jupyter_aicluster.agent.gpus import Gpus, visible_entries
from jupyter_aicluster.agent.nvml import Device, find, visible
from jupyter_aicluster.backends.local.backend import probe_gpus
from jupyter_aicluster.protocol import GpuSample
from tests.testbed.nvml_stand_in import HEALTHY, Script, library, script

__all__ = ["library", "script"]  # fixtures

MIB = 1 << 20


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


Start = Callable[[list[str]], Gpus]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def go(entries: list[str]) -> Gpus:
        gpus = Gpus(entries, period_s=0.02, silent_s=0.5, backoff_s=(0.05,))
        started.append(gpus)
        gpus.start()
        return gpus

    yield go
    for gpus in started:
        gpus.close()


def test_readings_of_healthy_gpus(script: Script, start: Start) -> None:
    gpus = start(["0", "1"])
    until(lambda: gpus.sample()[0].util_percent is not None)
    assert gpus.sample() == [GpuSample("0", 97.0, 60000 * MIB, 690.0, 71.0), GpuSample("1", 12.0, 100 * MIB, 90.5, 40.0)]
    assert [(info.name, info.mem_total_bytes, info.simulated) for info in gpus.infos()] == [("H100", 81559 * MIB, False)] * 2


def test_every_entry_is_named_before_and_without_any_reading() -> None:
    gpus = Gpus(["0", "GPU-x", "MIG-y"])
    assert [info.index for info in gpus.infos()] == ["0", "GPU-x", "MIG-y"]
    assert gpus.sample() == [GpuSample("0"), GpuSample("GPU-x"), GpuSample("MIG-y")]


def test_a_field_that_is_not_supported_is_none_and_hides_no_other(script: Script, start: Start) -> None:
    script.write("gpu GPU-aaaa1111-0000 GTX-770 - - - 52 -\ngpu GPU-aaaa2222-0000 H100 0 0 81559 40 90000\n")
    gpus = start(["0", "1"])
    until(lambda: gpus.sample()[1].util_percent is not None)
    assert gpus.sample() == [GpuSample("0", None, None, None, 52.0), GpuSample("1", 0.0, 0, 90.0, 40.0)]


def test_mig_has_memory_of_the_instance_and_no_utilisation(script: Script, start: Start) -> None:
    script.write("gpu GPU-aaaa1111-0000 H100 0 70000 81559 71 690000\nmig MIG-11 7 0 300 9984\nmig MIG-12 8 0 200 9984\n")
    gpus = start(["MIG-11", "MIG-GPU-aaaa1111-0000/8/0", "0"])
    until(lambda: gpus.sample()[0].mem_used_bytes is not None)
    assert gpus.sample() == [
        GpuSample("MIG-11", None, 300 * MIB),
        GpuSample("MIG-GPU-aaaa1111-0000/8/0", None, 200 * MIB),
        GpuSample("0", None, 70000 * MIB, 690.0, 71.0),  # the parent's 0 % would look idle
    ]


def test_a_lost_gpu_stays_named_lost_and_its_neighbours_keep_their_names(script: Script, start: Start) -> None:
    gpus = start(["0", "1"])
    until(lambda: gpus.sample()[0].util_percent is not None)
    script.write("gpu GPU-aaaa1111-0000 H100 lost 0 81559 0 0\ngpu GPU-aaaa2222-0000 H100 13 100 81559 40 90000\n")
    until(lambda: gpus.sample()[0].lost)
    assert gpus.sample()[1] == GpuSample("1", 13.0, 100 * MIB, 90.0, 40.0)
    # Its reader crashes; the next one counts a single GPU, which is now NVML's index 0 but still ours named "1".
    script.write("gpu GPU-aaaa2222-0000 H100 crash 100 81559 40 90000\n")
    until(lambda: gpus.sample()[1].util_percent is None)
    script.write("gpu GPU-aaaa2222-0000 H100 14 100 81559 40 90000\n")
    until(lambda: gpus.sample()[1].util_percent == 14.0)
    assert gpus.sample()[0] == GpuSample("0", lost=True)


@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_a_call_that_hangs_or_crashes_costs_the_readings_only_until_it_is_over(script: Script, start: Start, fault: str) -> None:
    gpus = start(["0", "1"])
    until(lambda: gpus.sample()[1].util_percent == 12.0)
    script.write(HEALTHY.replace(" 97 ", f" {fault} "))
    until(lambda: gpus.sample() == [GpuSample("0"), GpuSample("1")])  # old readings are not shown as new ones
    script.write(HEALTHY)
    until(lambda: gpus.sample()[0].util_percent == 97.0)


def test_a_broken_driver_is_told_in_its_own_words_and_recovers(script: Script, start: Start) -> None:
    script.write("init 18\n")
    gpus = start(["0"])
    until(lambda: gpus.problem != "")
    assert gpus.problem == "Driver/library version mismatch"
    script.write(HEALTHY)
    until(lambda: gpus.sample()[0].util_percent == 97.0)
    assert gpus.problem == ""


def test_the_reader_ends_with_the_one_who_started_it(script: Script) -> None:
    command = [sys.executable, "-m", "jupyter_aicluster.agent.nvml", "--watch", '[["0", null]]', "0.02"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(10) == 0


def test_the_backend_finds_what_it_may_use(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = probe_gpus(sys.executable)
    assert (slots.names, slots.simulated, slots.gpu_type) == (("0", "1"), False, "H100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa2222")
    assert probe_gpus(sys.executable).names == ("GPU-aaaa2222",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe_gpus(sys.executable).names == ()


def test_no_driver_is_no_gpus_and_a_reason(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    script.write("init 9\n")
    slots = probe_gpus(sys.executable)
    assert (slots.names, slots.problem) == ((), "Driver Not Loaded")
    assert "cannot be asked" in probe_gpus("/no/such/python").problem


def device(parent: int, uuid: str, mig: str = "", *, split: bool = False) -> Device:
    return Device(ctypes.c_void_p(), parent, uuid, "H100", None, mig, split)


DEVICES = [
    device(0, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", split=True),
    device(0, "MIG-377e0049-554c-540b-93c6-d0976f8426cb", "1/2"),
    device(1, "GPU-8932aaaa-0000"),
]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("0,1", [("0", 0), ("1", 2)]),
        (" 1 , 0", [("1", 2), ("0", 0)]),
        ("MIG-377e0049-554c-540b-93c6-d0976f8426cb", [("MIG-377e0049-554c-540b-93c6-d0976f8426cb", 1)]),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2", [("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2", 1)]),
        ("GPU-8932f937", [("GPU-8932f937", 0)]),
        ("GPU-8932", [("GPU-8932", None)]),  # two GPUs begin so
        ("7", [("7", None)]),
        ("sim0", [("sim0", None)]),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("1,-1,0", [("1", 2)]),
        (None, [("MIG-377e0049-554c-540b-93c6-d0976f8426cb", 1), ("1", 2)]),
    ],
)
def test_entries_of_cuda_visible_devices_are_opaque(entries: str | None, expected: list[tuple[str, int | None]]) -> None:
    assert visible(DEVICES, entries) == [(name, None if place is None else DEVICES[place]) for name, place in expected]


def test_a_device_whose_uuid_could_not_be_read_matches_nothing() -> None:
    assert find([device(0, "")], "GPU-1") is None


@pytest.mark.parametrize(
    ("text", "expected"), [("0,1", ["0", "1"]), ("MIG-a, MIG-b", ["MIG-a", "MIG-b"]), ("", []), ("NoDevFiles", []), ("-1", [])]
)
def test_visible_entries(monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert visible_entries() == expected


# ---- simulated ones


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose *child* computes, so that data loaders count too."""
    with subprocess.Popen(
        ["sh", "-c", "sh -c 'while :; do :; done' & echo on; wait"], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        os.killpg(process.pid, 9)


def test_load_of_a_simulated_gpu_is_that_of_its_holders(tmp_path: Path, burner: subprocess.Popen[bytes]) -> None:
    now = [100.0]
    gpus = simgpus.SimulatedGpus(["sim4", "sim5", "sim6"], tmp_path / "holders", clock=lambda: now[0])
    gpus.start()
    (tmp_path / "holders" / str(burner.pid)).write_text("sim5,sim6")
    (tmp_path / "holders" / ".123.tmp").write_text("sim4")  # a write under way
    assert [sample.util_percent for sample in gpus.sample()] == [0.0, 0.0, 0.0]  # nothing to compare with yet
    before = simgpus.usage(burner.pid)
    assert before is not None
    until(lambda: (simgpus.usage(burner.pid) or before)[0] >= before[0] + 0.2)
    now[0] += 0.4
    idle, busy, also = gpus.sample()
    assert idle == GpuSample("sim4", 0.0, 0)
    assert 40 <= (busy.util_percent or 0) <= 100
    assert busy.util_percent == also.util_percent
    assert 0 < (busy.mem_used_bytes or 0) < 100 * MIB
    assert (busy.power_w, busy.temp_c, busy.lost) == (None, None, False)


def test_drivers_count_for_the_first_slot_and_files_of_the_dead_go(tmp_path: Path) -> None:
    gpus = simgpus.SimulatedGpus(["sim0", "sim1"], tmp_path / "holders", drivers=lambda: [os.getpid()])
    gpus.start()
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "holders" / str(dead.pid)).write_text("sim1")
    first, second = gpus.sample()
    assert (first.mem_used_bytes or 0) > 0
    assert second.mem_used_bytes == 0
    assert not (tmp_path / "holders" / str(dead.pid)).exists()


def test_simulated_gpus_say_so(tmp_path: Path) -> None:
    infos = simgpus.SimulatedGpus(["sim0"], tmp_path).infos()
    assert [(info.index, info.name, info.simulated) for info in infos] == [("sim0", "simulated GPU", True)]


def test_samples_survive_the_end_of_the_temp_folder(tmp_path: Path) -> None:
    assert simgpus.SimulatedGpus(["sim0"], tmp_path / "gone").sample() == [GpuSample("sim0", 0.0, 0)]


def test_the_hook_is_named_as_ray_expects_it(tmp_path: Path) -> None:
    assert simgpus.ray_env(tmp_path) == {
        "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "jupyter_aicluster.agent.simgpus.report_holder",
        "AICLUSTER_HOLDERS": str(tmp_path),
    }


def test_list_is_one_json_object(script: Script) -> None:
    answer = subprocess.run([sys.executable, "-m", "jupyter_aicluster.agent.nvml", "--list"], capture_output=True, check=True)
    assert json.loads(answer.stdout)["gpus"][0] == {
        "index": "0",
        "name": "H100",
        "mem_total_bytes": 81559 * MIB,
        "uuid": "GPU-aaaa1111-0000",
    }

"""Simulated GPUs: a slot's load is the CPU load, and its memory the RSS, of the processes that hold it.

Which Ray worker holds which slot only the worker knows, so each one runs `report_holder` (Ray's worker set-up hook) and keeps a file
named by its pid up to date.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from jupyter_aicluster.protocol import GpuInfo, GpuSample
from jupyter_aicluster.rundir import write_private

HOLDERS_ENV = "AICLUSTER_HOLDERS"
_HOOK_ENV = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # what runtime_env's worker_process_setup_hook sets
LOOK_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def ray_env(holders: Path) -> dict[str, str]:
    """Environment for ``ray start``: every worker below it reports the slots it holds in ``holders``."""
    return {_HOOK_ENV: f"{__name__}.{report_holder.__name__}", HOLDERS_ENV: str(holders)}


class SimulatedGpus:
    """`gpus.GpuReader` without GPUs. ``drivers`` gives the pids of driver processes: they count for the node's first slot."""

    def __init__(
        self,
        slots: Sequence[str],
        holders: Path,
        *,
        drivers: Callable[[], Iterable[int]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = tuple(slots)
        self._holders = holders
        self._drivers = drivers
        self._clock = clock
        self._total_bytes = _PAGE * os.sysconf("SC_PHYS_PAGES")
        self._before: dict[int, tuple[float, float]] = {}  # pid → (when, CPU seconds)

    def start(self) -> None:
        self._holders.mkdir(mode=0o700, parents=True, exist_ok=True)

    def close(self) -> None:
        """Nothing runs."""

    def infos(self) -> list[GpuInfo]:
        """Their memory is the machine's: all of it can go to whoever holds them."""
        return [GpuInfo(slot, "simulated GPU", self._total_bytes, simulated=True) for slot in self._slots]

    def sample(self) -> list[GpuSample]:
        """Load since the call before; a process seen for the first time counts from the next one on."""
        util, mem = dict.fromkeys(self._slots, 0.0), dict.fromkeys(self._slots, 0)
        seen: dict[int, tuple[float, float]] = {}
        for pid, slots in self._held().items():
            reading = usage(pid)
            if reading is None:
                continue
            cpu_s, rss_bytes = reading
            now = self._clock()
            seen[pid] = now, cpu_s
            then, cpu_before_s = self._before.get(pid, (now, cpu_s))
            load = 100 * (cpu_s - cpu_before_s) / (now - then) if now > then else 0.0
            for slot in slots:
                util[slot] += load
                mem[slot] += rss_bytes // len(slots)
        self._before = seen
        return [GpuSample(slot, util_percent=round(min(100.0, util[slot]), 1), mem_used_bytes=mem[slot]) for slot in self._slots]

    def _held(self) -> dict[int, list[str]]:
        """pid → its slots. Files of processes that are gone are removed."""
        held = {pid: [self._slots[0]] for pid in self._drivers()} if self._slots else {}
        with suppress(OSError):  # the node's temp folder is going, or was never ours
            for path in self._holders.iterdir():
                if not path.name.isdecimal():
                    continue
                if not Path("/proc", path.name).exists():
                    path.unlink(missing_ok=True)
                elif slots := [slot for slot in path.read_text().split(",") if slot in self._slots]:
                    held[int(path.name)] = slots
        return held


def usage(pid: int) -> tuple[float, int] | None:
    """CPU seconds and RSS bytes of a process and all its living descendants; None if it is gone."""
    total_s, total_bytes, found = 0.0, 0, False
    todo = [pid]
    while todo:
        process = Path("/proc", str(todo.pop()))
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            for thread in (process / "task").iterdir():
                todo += [int(child) for child in (thread / "children").read_text().split()]
        except OSError:  # ended meanwhile
            continue
        found = True
        total_s += (int(fields[11]) + int(fields[12])) / _TICKS
        total_bytes += int(fields[21]) * _PAGE
    return (total_s, total_bytes) if found else None


def report_holder() -> None:
    """Runs in every Ray worker as it starts: a thread keeps ``$AICLUSTER_HOLDERS/PID`` equal to the worker's GPU ids."""
    holders = os.environ.get(HOLDERS_ENV)
    if holders:
        threading.Thread(target=_report, args=(Path(holders) / str(os.getpid()),), name="gpu-holder", daemon=True).start()


def _report(path: Path) -> None:
    ray = sys.modules["ray"]  # this module is the agent's, which never imports ray; in a worker it is there
    written = ""
    while True:
        time.sleep(LOOK_S)
        # A guest in the user's process: whatever fails before the worker is connected or as it ends is not worth a traceback in its log.
        with suppress(Exception):
            held = ",".join(map(str, ray.get_gpu_ids()))
            if held != written:
                write_private(path, held.encode())
                written = held

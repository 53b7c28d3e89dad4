"""Drivers and ranks of this node: processes that should run, and how those that ended did."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jupyter_aicluster import procs
from jupyter_aicluster.agent.gpus import visible_entries
from jupyter_aicluster.agent.logs import Tailer
from jupyter_aicluster.agent.noderay import cpu_share
from jupyter_aicluster.agent.raystart import environment
from jupyter_aicluster.protocol import Submission
from jupyter_aicluster.rundir import RunDir, write_private

_NO_RANKS: Mapping[str, Mapping[str, str]] = MappingProxyType({})
GRACE_S = 1.0  # between SIGTERM and SIGKILL when nothing of the driver is wanted any more


@dataclass(slots=True)
class _Driver:
    start: int
    process: subprocess.Popen[bytes] | None  # None: it could not even be started
    rank: bool = False

    def code(self) -> int | None:
        return 127 if self.process is None else self.process.poll()


class Drivers:
    def __init__(self, run: RunDir, submission: Submission, temp: Path, tailer: Tailer) -> None:
        self._run, self._submission, self._temp, self._tailer = run, submission, temp, tailer
        self._running: dict[str, _Driver] = {}

    def apply(self, wanted: Mapping[str, int], ray_address: str, attempt: int, ranks: Mapping[str, Mapping[str, str]] = _NO_RANKS) -> None:
        """One process per wanted session or rank, of the wanted start; others are killed. Never blocks.

        ``ranks``: the environment of those that are ranks.
        """
        for session, driver in list(self._running.items()):
            if wanted.get(session) == driver.start:
                continue
            if driver.process and driver.code() is None:
                driver.process.kill()
            elif session not in wanted:
                self._kill_rest(session, driver.start)
                del self._running[session]
        for session, start in wanted.items():
            known = self._running.get(session)
            if known and (known.start == start or known.code() is None):
                continue
            if known:
                self._kill_rest(session, known.start)
            env = ranks.get(session)
            self._running[session] = _Driver(start, self._try(session, start, ray_address, attempt, env), env is not None)

    def status(self) -> dict[str, dict[str, Any]]:
        """What a Beat says of each session."""
        said: dict[str, dict[str, Any]] = {}
        for session, driver in self._running.items():
            code = driver.code()
            said[session] = {"start": driver.start, "state": "running" if code is None else "exited"}
            if code is not None:
                said[session] |= {"code": code} if code >= 0 else {"signal": -code}
        return said

    def pids(self) -> list[int]:
        """Of drivers: ranks say themselves which simulated GPUs are theirs."""
        return [driver.process.pid for driver in self._running.values() if driver.process and driver.code() is None and not driver.rank]

    async def stop(self) -> None:
        """End all of them: SIGTERM, then SIGKILL."""
        living = self._living()
        for process in living:
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + GRACE_S  # for all together: JAX takes SIGTERM as a notice and stays
        for process in living:
            try:
                await asyncio.to_thread(process.wait, max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        self._running.clear()

    def _living(self) -> list[subprocess.Popen[bytes]]:
        return [driver.process for driver in self._running.values() if driver.process and driver.code() is None]

    def _kill_rest(self, session: str, start: int) -> None:
        """What an ended driver left running: data loaders and servers of its cells, which may hold GPU memory."""
        for pid in procs.marked(self._submission.uid, also=_marks(session, start)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _try(
        self, session: str, start: int, ray_address: str, attempt: int, rank: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes] | None:
        log = self._temp / f"driver-{session}-{start}.log"
        stream = f"driver-{session}" if rank is None else f"rank-{rank['RANK']}"
        self._tailer.follow(stream if start == 1 else f"{stream}-{start}", log)
        try:
            return self._spawn(session, start, ray_address, attempt, log, rank)
        except OSError as error:  # its folder is gone, no memory, ...: the hub ends a cluster whose driver fails again and again
            with suppress(OSError):
                what = "driver" if rank is None else "rank"
                log.write_text(f"the {what} could not be started in {self._submission.working_dir}: {error}\n")
            return None

    def _spawn(
        self, session: str, start: int, ray_address: str, attempt: int, log: Path, rank: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        env = environment(os.environ, self._run.ray_token, [ray_address.rpartition(":")[0]], dict(self._submission.cluster_spec.env))
        if rank is not None:
            threads = max(1, cpu_share(self._submission) // int(rank["LOCAL_WORLD_SIZE"]))
            env = {"OMP_NUM_THREADS": str(threads)} | env | dict(rank)
            if all(name.lower() == "no_proxy" for name in env if name.lower().endswith("_proxy")):
                for name in ("no_proxy", "NO_PROXY"):  # there is no proxy to keep it from, and JAX warns of the variable
                    env.pop(name, None)
        env |= {
            "RAY_ADDRESS": ray_address,
            **_marks(session, start),
            "AICLUSTER_ATTEMPT": str(attempt),
            "AICLUSTER_HOLDERS": str(self._temp / "holders"),
            "AICLUSTER_SCRATCH": str(self._temp),
        }
        # -P: a json.py of the notebook's folder must not shadow ours; the driver puts the folder on the path for the cells.
        command = [sys.executable, "-P", "-m", "jupyter_aicluster.agent.driver", "--run", str(self._run.path), "--session", session]
        if rank is not None:
            command += ["--rank", rank["RANK"]]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=self._submission.working_dir,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_default_interrupt,
            )
        if rank is not None and self._submission.simulated:
            slots, local = visible_entries(), int(rank["LOCAL_RANK"])
            mine = slots if rank["LOCAL_WORLD_SIZE"] == "1" else slots[local : local + 1]
            with suppress(OSError):
                write_private(self._temp / "holders" / str(process.pid), ",".join(mine).encode())
        return process


def _marks(session: str, start: int) -> dict[str, str]:
    return {"AICLUSTER_SESSION": session, "AICLUSTER_DRIVER_START": str(start)}


def _default_interrupt() -> None:
    """A node program started in the background may have inherited an ignored SIGINT; a driver must hear it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

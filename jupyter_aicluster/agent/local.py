"""The supervisor of a local cluster: waits for its slots in the ledger, runs hub and node programs, gives everything back.

Started detached by the backend. It holds the cluster's request in the ledger by an open lock file, so nothing it can die of
loses the slots or keeps them. Its children see its end as end of file on their standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_aicluster import procs
from jupyter_aicluster.ledger import Ledger
from jupyter_aicluster.protocol import Submission
from jupyter_aicluster.rundir import RunDir, read_json, write_json
from jupyter_aicluster.state import End, Ending

STOP_S = 20.0  # how long the hub may take to end after it was asked to
LEAVE_S = 10.0  # then the node programs
POLL_S = 0.2  # how often the queue and the stop file are looked at
LEFT_S = 12.0  # a node program that ended by itself was told to, and then the hub ends within its own 10 s; if not, the node is missing
STAYED_S = 30.0  # a node program that lived so long starts again at once; one that did not waits longer each time

Command = Callable[[RunDir, int | None], Sequence[str]]


def agent_command(run: RunDir, node: int | None) -> list[str]:
    """Hub (``node`` None) or node program."""
    program = [sys.executable, "-P", "-m", "jupyter_aicluster.agent"]  # -P: a module of the notebook's folder must not shadow ours
    if node is None:
        return [*program, "hub", "--run", str(run.path), "--bind", "127.0.0.1"]
    return [*program, "node", "--run", str(run.path), "--node", str(node)]


@dataclass(slots=True)
class Supervisor:
    run: RunDir
    ledger: Ledger
    submission: Submission
    command: Command = agent_command
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def main(self) -> int:
        """From queue to end record. Whatever happens in between, the slots go back only when no process of the cluster is left."""
        uid = self.submission.uid
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        watcher = asyncio.create_task(self._watch_stop_file())
        try:
            slots = await self._wait_for_slots()
            if slots is None:
                self._end(Ending.STOPPED, "stopped while it waited for GPUs")
            else:
                await self._serve(slots)
        except Exception as error:  # whatever it is, its clients must hear of it; the traceback goes to the log
            self._end(Ending.FAILED, f"its supervisor failed: {type(error).__name__}: {error}", evidence=self.run.tail())
            raise
        finally:
            watcher.cancel()
            left = await asyncio.to_thread(procs.kill_marked, uid)
            procs.remove_tmp(uid)
            if left:
                _say(f"processes {left} cannot be killed: their GPUs stay taken until they are gone")
            else:
                self.ledger.release(uid)
        return 0

    async def _watch_stop_file(self) -> None:
        while not self.stopping.is_set():
            if self.run.stop.exists():
                self.stopping.set()
            await asyncio.sleep(POLL_S)

    async def _wait_for_slots(self) -> tuple[str, ...] | None:
        """None: stopped while waiting."""
        while not self.stopping.is_set():
            if slots := self.ledger.try_grant(self.submission.uid):
                _say(f"holds {', '.join(slots)}")
                return slots
            await asyncio.to_thread(self.ledger.sweep)
            await _within(self.stopping.wait(), POLL_S)
        return None

    async def _serve(self, slots: tuple[str, ...]) -> None:
        per_node = self.submission.gpus_per_node
        hub = await self._spawn(None, {})
        homes = [slots[node * per_node : (node + 1) * per_node] for node in range(self.submission.nodes)]
        nodes = [asyncio.create_task(self._keep_node(node, mine)) for node, mine in enumerate(homes)]
        ended = asyncio.create_task(hub.wait())
        stop = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait([ended, stop], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self._end(Ending.FAILED, f"its hub {_died(ended.result())}", evidence=self.run.tail())
            else:
                await _end_process(hub, STOP_S)
                self._end(Ending.STOPPED, "stopped")
        finally:
            stop.cancel()
            for task in nodes:
                task.cancel()
            await asyncio.gather(*nodes, return_exceptions=True)

    async def _keep_node(self, node: int, slots: tuple[str, ...]) -> None:
        """Run one node program; start it again, after clearing up, as long as the hub lives. Cancelled: ends it."""
        uid = self.submission.uid
        deaths = 0
        while True:
            began = time.monotonic()
            process = await self._spawn(node, node_env(node, slots, simulated=self.submission.simulated))
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                await _end_process(process, LEAVE_S)
                raise
            await asyncio.to_thread(procs.kill_marked, uid, node)
            procs.remove_tmp(uid, node)
            deaths = deaths + 1 if time.monotonic() - began < STAYED_S else 0
            _say(f"node program {node} {_died(code)}")
            await asyncio.sleep(min(deaths, 10) if code else LEFT_S)

    async def _spawn(self, node: int | None, env: Mapping[str, str]) -> Process:
        marks = {Submission.UID_ENV: self.submission.uid}
        return await asyncio.create_subprocess_exec(*self.command(self.run, node), stdin=PIPE, env={**os.environ, **marks, **env})

    def _end(self, ending: Ending, cause: str, evidence: str = "") -> None:
        """Write the end record unless there is one: the hub's own is the better one."""
        if not self.run.end.exists():
            gpus = self.submission.nodes * self.submission.gpus_per_node
            write_json(self.run.end, End(ending, cause, time.time(), evidence=evidence, gpus=gpus).to_json())


def node_env(node: int, slots: Sequence[str], *, simulated: bool) -> dict[str, str]:
    """What a node program must know about its GPUs. Simulated slots name no device, so no real GPU is ever used by accident."""
    env = {Submission.NODE_ENV: str(node), "CUDA_VISIBLE_DEVICES": ",".join(slots), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**env, "AICLUSTER_SIMULATED": "1"} if simulated else env


def main(argv: Sequence[str], command: Command = agent_command) -> int:
    """``local --run DIR [--lock-fd N] [--detach]``; without ``--lock-fd`` it queues up itself, so that a person can start it."""
    parser = argparse.ArgumentParser(prog="local", allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--lock-fd", type=int)
    parser.add_argument("--detach", action="store_true", help="return at once, the supervisor goes on in the background")
    args = parser.parse_args(argv)
    if args.detach and os.fork():
        return 0
    run = RunDir(args.run.resolve())
    submission = Submission.from_json(read_json(run.submission) or {})
    local = read_json(run.path / "local.json") or {}
    ledger = Ledger(Path(local["ledger"]), local["slots"])
    if args.lock_fd is None:
        gpus = submission.nodes * submission.gpus_per_node
        ledger.request(submission.uid, gpus, priority=submission.cluster_spec.priority, name=submission.name, run=run.path)
    else:
        os.set_inheritable(args.lock_fd, False)
    if not ledger.own(submission.uid):
        _say("its request is no longer in the queue")
        return 1
    return asyncio.run(Supervisor(run, ledger, submission, command).main())


async def _end_process(process: Process, timeout_s: float) -> None:
    """Ask by SIGTERM, then SIGKILL. Its lifeline stays: the end of that would mean that we were killed."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        if not await _within(process.wait(), timeout_s):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _within(what: Awaitable[object], timeout_s: float) -> bool:
    """Whether the awaitable came to its end in time."""
    try:
        await asyncio.wait_for(what, timeout_s)
    except TimeoutError:
        return False
    return True


def _died(code: int) -> str:
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} supervisor {text}\n")

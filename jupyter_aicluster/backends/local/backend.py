"""GPUs of this machine: real ones by NVML, else simulated ones, queued for in a ledger; nothing to set up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from jupyter_aicluster import procs
from jupyter_aicluster.backends.base import Backend, Dialer
from jupyter_aicluster.backends.local.render import MACHINE, NAME, Machine, make_plan, waiting_reason
from jupyter_aicluster.errors import BackendUnavailable, HubUnreachable, SubmitError
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.ledger import Entry, Ledger, Snapshot
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Availability, Inventory, Plan, Pool
from jupyter_aicluster.rundir import RunDir, read_json, write_json
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Observation, Word

PROBE_S = 10.0  # NVML may hang on a broken GPU
PROBE_AGE_S = 300.0
LAUNCH_S = 30.0

# Of another cluster, perhaps a dead one: a process that inherited them would join it, or fail to prove itself to the new one.
_FOREIGN = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_NODE_ID")


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """``kind``: "auto" (real GPUs if NVML finds any, else simulated), "real" or "simulated"; ``gpus``: how many simulated ones."""

    gpus: int = 16
    kind: str = "auto"
    python: str = sys.executable
    supervisor: tuple[str, ...] = ("-P", "-m", "jupyter_aicluster.agent", "local")  # -P: a notebook's folder may hold a json.py


@dataclass(frozen=True, slots=True)
class Slots:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES calls them; ``problem`` says why NVML could not be asked."""

    names: tuple[str, ...]
    simulated: bool
    gpu_type: str | None = None
    problem: str = ""


class LocalBackend(Backend):
    """``home`` holds the run folders (``runs/UID``) and, by host, the ledger; both may lie on a disk that other machines share."""

    name: ClassVar[str] = NAME
    poll_s: ClassVar[tuple[float, float]] = (0.3, 2.0)  # one small folder

    @classmethod
    def from_options(cls, options: Options) -> Self:
        return cls(options.home, LocalOptions(gpus=options.simulated_gpus, kind=options.gpu_kind))

    def __init__(self, home: Path, options: LocalOptions | None = None) -> None:
        self._options = options or LocalOptions()
        self._runs = home / "runs"
        self._root = home / "ledger" / socket.gethostname()
        self._machine = Machine(len(os.sched_getaffinity(0)), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        self._program = (self._options.python, *self._options.supervisor)
        self._probed: tuple[float, Slots] | None = None

    async def available(self) -> Availability:
        slots = await asyncio.to_thread(self._slots)
        if slots.names:
            return Availability(True)
        return Availability(False, f"no GPU on this machine ({slots.problem or 'none found'})", "use simulated GPUs: simulated_gpus = 16")

    async def inventory(self) -> Inventory:
        return await asyncio.to_thread(self._inventory)

    def plan(self, spec: ClusterSpec, inventory: Inventory) -> Plan:
        return make_plan(spec, inventory, self._machine, self._program, self._runs)

    async def submit(self, plan: Plan, handle: Handle, run: RunDir) -> None:
        await asyncio.to_thread(self._submit, plan, handle, run)

    async def observe(self, handles: Iterable[Handle]) -> Mapping[Handle, Observation]:
        return await asyncio.to_thread(self._observe, list(handles))

    async def cancel(self, handle: Handle) -> None:
        await asyncio.to_thread(self._cancel, handle)

    async def find(self) -> list[Handle]:
        def look() -> list[Handle]:
            seen = self._swept()
            return [Handle(NAME, entry.uid, entry.name) for entry in (*seen.holders, *seen.waiting)]

        return await asyncio.to_thread(look)

    async def connect(self, handle: Handle) -> Dialer:
        run = self._run(handle)
        hub = read_json(run.hub)
        if hub is None or run.end.exists():
            raise HubUnreachable(f"{handle.name} has no hub {'any more' if hub else 'yet'}", hint=f"%gpujob list {handle.name}")
        return Dialer(f"https://{hub['host']}:{hub['port']}")

    def _run(self, handle: Handle) -> RunDir:
        return RunDir(self._runs / handle.uid)

    def _slots(self) -> Slots:
        if self._options.kind == "simulated":
            return _simulated(self._options.gpus)
        if self._probed is None or time.monotonic() - self._probed[0] > PROBE_AGE_S:
            self._probed = time.monotonic(), probe_gpus(self._options.python)
        real = self._probed[1]
        return real if real.names or self._options.kind == "real" else _simulated(self._options.gpus)

    def _ledger(self) -> Ledger:
        return Ledger(self._root, self._slots().names)

    def _swept(self) -> Snapshot:
        return self._seen(sweep=True)

    def _seen(self, *, sweep: bool) -> Snapshot:
        ledger = self._ledger()
        try:
            if sweep:
                ledger.sweep()
            return ledger.snapshot()
        except OSError as error:
            raise BackendUnavailable(
                "the queue for this machine's GPUs cannot be read", evidence=str(error), hint=f"is {self._root} yours, and is there room?"
            ) from error

    def _inventory(self) -> Inventory:
        slots, seen = self._slots(), self._swept()
        waiting = sum(entry.gpus for entry in seen.waiting)
        total = len(slots.names)
        return Inventory((Pool(MACHINE, total, len(seen.free), slots.gpu_type, total, slots.simulated, waiting),))

    def _submit(self, plan: Plan, handle: Handle, run: RunDir) -> None:
        slots = self._slots()
        if plan.spec.gpus > len(slots.names):
            raise SubmitError(f"{plan.spec.gpus} GPUs, {MACHINE} has {len(slots.names)}", hint="ask for fewer: --gpus", submitted=False)
        try:
            write_json(run.path / "local.json", {"ledger": str(self._root), "slots": slots.names})
            request = self._ledger().request(handle.uid, plan.spec.gpus, priority=plan.spec.priority, name=handle.name, run=run.path)
        except OSError as error:
            raise SubmitError(
                "the queue for this machine's GPUs cannot be written",
                evidence=str(error),
                hint=f"is there room in {self._root}?",
                submitted=False,
            ) from error
        command = [*self._program, "--run", str(run.path), "--lock-fd", str(request.fd), "--detach"]
        working_dir = plan.spec.working_dir or "."
        try:
            # The supervisor inherits the request's lock: there is no moment at which nobody owns the request.
            with run.log.open("ab") as log:
                os.fchmod(log.fileno(), 0o600)
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=working_dir,
                    env=supervisor_env(os.environ, run),
                    pass_fds=(request.fd,),
                    start_new_session=True,
                    timeout=LAUNCH_S,
                    check=True,
                )
        except (OSError, subprocess.SubprocessError) as error:
            self._ledger().release(handle.uid)
            evidence = f"{error}\n{run.log.read_text(errors='replace')[-2000:]}"
            raise SubmitError(
                "the cluster's supervisor could not be started", evidence=evidence, hint="%gpujob doctor", submitted=False
            ) from error
        finally:
            request.close()

    def _observe(self, handles: list[Handle]) -> dict[Handle, Observation]:
        try:
            seen = self._swept()
        except BackendUnavailable as error:
            unknown = Observation(Word.UNKNOWN, reason=error.what, evidence=error.evidence, hint=error.hint)
            return dict.fromkeys(handles, unknown)
        return {handle: self._look(handle, seen) for handle in handles}

    def _look(self, handle: Handle, seen: Snapshot) -> Observation:
        """One cluster's observation. A restart in place is the hub's doing: the attempt is what the hub says it is."""
        run = self._run(handle)
        attempt = (read_json(run.hub) or {}).get("attempt", 1)
        return replace(self._word(handle, run, seen), attempt=attempt)

    def _word(self, handle: Handle, run: RunDir, seen: Snapshot) -> Observation:
        entry = seen.find(handle.uid)
        if entry is None:
            end = read_json(run.end)
            if end is None:
                return Observation(Word.ABSENT, reason=f"{MACHINE} does not know it")
            try:
                record = End.from_json(end)
            except (KeyError, TypeError) as error:  # from a version to come
                return Observation(Word.UNKNOWN, reason="its end record cannot be read", evidence=repr(error))
            return Observation(Word.ENDED, reason=record.cause, evidence=record.evidence, end=record)
        native_id = None if entry.pid is None else str(entry.pid)
        if run.end.exists() or run.stop.exists() or entry.dead_s is not None:
            return Observation(Word.RELEASING, native_id=native_id, reason="its processes are ending")
        if entry.slots:
            return Observation(Word.GRANTED, native_id=native_id, reason=f"holds {len(entry.slots)} GPUs of {MACHINE}")
        place = seen.position(handle.uid)
        reason = waiting_reason(entry, seen)
        return Observation(Word.QUEUED, native_id=native_id, reason=reason, position=place, queue_length=len(seen.waiting))

    def _cancel(self, handle: Handle) -> None:
        run = self._run(handle)
        with suppress(OSError):  # a full disk; the signal says the same
            if run.path.is_dir() and not run.end.exists():
                run.stop.touch(mode=0o600)
        entry = self._seen(sweep=False).find(handle.uid)
        if entry is not None and entry.pid is not None and _is_alive(entry):
            with suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGTERM)
        else:
            self._swept()


def supervisor_env(environ: Mapping[str, str], run: RunDir) -> dict[str, str]:
    """The kernel's environment without what belongs to another cluster, with this one's code first on the path.

    It does not carry the cluster's mark, which is for what the supervisor starts and will kill.
    """
    env = {key: value for key, value in environ.items() if not key.startswith("AICLUSTER_") and key not in _FOREIGN}
    path = [str(run.bundle), env.get("PYTHONPATH", "")] if run.bundle.exists() else [env.get("PYTHONPATH", "")]
    return {**env, "PYTHONPATH": os.pathsep.join(entry for entry in path if entry)}


def probe_gpus(python: str) -> Slots:
    """Ask NVML in a process of its own: it may hang or crash."""
    command = [python, "-P", "-m", "jupyter_aicluster.agent.nvml", "--list"]
    try:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=True)
        found = json.loads(answer.stdout)
        names = tuple(str(gpu["index"]) for gpu in found["gpus"])
        types = sorted({str(gpu["name"]) for gpu in found["gpus"]})
        return Slots(names, False, types[0] if len(types) == 1 else None, str(found.get("problem", "")))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return Slots((), False, problem=f"NVML cannot be asked: {error}")


def _simulated(count: int) -> Slots:
    return Slots(tuple(f"sim{number}" for number in range(count)), True)


def _is_alive(entry: Entry) -> bool:
    return entry.pid is not None and procs.start_time(entry.pid) == entry.start

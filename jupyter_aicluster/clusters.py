"""All of this user's clusters as one process sees them: records, backends, one reconciler. Runs in the background loop."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jupyter_aicluster import bundle, tls
from jupyter_aicluster.backends import registry
from jupyter_aicluster.backends.base import Backend
from jupyter_aicluster.errors import AIClusterError, BackendUnavailable, NeverFits, SubmitError
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Fit, Plan
from jupyter_aicluster.protocol import CellRequest, Submission
from jupyter_aicluster.reconcile import Reconciler
from jupyter_aicluster.rundir import RunDir, copy_private, write_json, write_private
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Ending, Observation, Target, Word
from jupyter_aicluster.store import Record, Store

AUTO = ("kubernetes", "slurm", "local")  # in this order, the first that is registered and answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What goes into a submission besides the spec. Times in seconds."""

    session: str = "main"
    owner: str = ""
    time_s: float
    keep_s: float
    retries: int = 0
    working_dir: Path
    cell: CellRequest | None = None
    payload: Path | None = None


class Clusters:
    def __init__(self, options: Options, backends: dict[str, Backend] | None = None) -> None:
        self.options = options
        self.store = Store(options.home)
        self._backends = dict(backends or {})
        self.reconciler = Reconciler(self.store, self.backend)
        self._withdrawing: set[asyncio.Task[None]] = set()

    def backend(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = registry.load(name, self.options)
        return self._backends[name]

    async def choose(self, name: str) -> Backend:
        """The backend of that name, or for ``auto`` the first that answers. Raises `BackendUnavailable`."""
        known = {*registry.names(), *self._backends}
        missing = []
        for candidate in [n for n in AUTO if n in known] if name == "auto" else [name]:
            backend = self.backend(candidate)
            found = await backend.available()
            if found.ok:
                return backend
            missing.append((candidate, found))
        raise BackendUnavailable(
            f"no scheduler can be used from here ({', '.join(candidate for candidate, _ in missing) or name})",
            evidence="\n".join(f"{candidate}: {found.reason}" for candidate, found in missing),
            hint=missing[-1][1].hint if missing else "choose one with --backend",
        )

    async def plan(self, spec: ClusterSpec, backend: Backend) -> Plan:
        """What would be sent. Never raises for a request that does not fit: the plan says so."""
        return backend.plan(spec, await backend.inventory())

    async def submit(self, plan: Plan, wish: Wish) -> Record:
        """Record it, then send it. Raises `NeverFits` before anything is recorded, `SubmitError` after."""
        if plan.fit is Fit.NEVER:
            raise NeverFits(plan.because, hint="%gpujob shows what there is; ask for less")
        handle = Handle.new(plan.backend, self.store.names(), plan.spec.label)
        run = self.store.run(handle.uid)
        record = Record(handle, plan.spec, time.time(), run.path, simulated=plan.simulated, nodes=plan.nodes, owner=wish.owner)
        sending = asyncio.create_task(self._send(record, plan, wish))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:  # Ctrl-C: what is on its way cannot be called back, only given back
            self._withdrawing.add(withdrawing := asyncio.create_task(self._withdraw(handle, sending)))
            withdrawing.add_done_callback(self._withdrawing.discard)
            raise
        return record

    async def _send(self, record: Record, plan: Plan, wish: Wish) -> None:
        handle, run = record.handle, self.store.run(record.handle.uid)
        try:
            self.store.put(record)
            await asyncio.to_thread(self._write_run, run, handle, plan, wish)
            await self.backend(plan.backend).submit(plan, handle, run)
        except AIClusterError as error:
            self._mark_failed(handle, error.what)
            raise
        except OSError as error:
            cause = f"the cluster's files cannot be written below {self.options.home}"
            self._mark_failed(handle, cause)
            raise SubmitError(cause, evidence=str(error), hint="is there room on that disk?", submitted=False) from error

    async def _withdraw(self, handle: Handle, sending: asyncio.Task[None]) -> None:
        await asyncio.wait([sending])
        if not sending.exception():
            await self.cancel(handle)

    def _write_run(self, run: RunDir, handle: Handle, plan: Plan, wish: Wish) -> None:
        options = self.options
        run.create()
        tls.make_certificate(run, handle.uid)
        for token in (run.hub_token, run.ray_token):
            write_private(token, secrets.token_hex(32).encode())
        bundle.place(options.home / "bundles", run.bundle)
        if wish.cell is not None and wish.cell.inputs and wish.payload is not None:
            copy_private(wish.payload, run.files / wish.cell.inputs)
        submission = Submission(
            uid=handle.uid,
            name=handle.name,
            backend=handle.backend,
            spec=plan.spec.to_json(),
            nodes=plan.nodes,
            gpus_per_node=plan.gpus_per_node,
            time_s=wish.time_s,
            keep_s=wish.keep_s,
            lease_s=options.lease_s,
            retries=wish.retries,
            connect_timeout_s=options.connect_timeout_s,
            join_timeout_s=options.join_timeout_s,
            simulated=plan.simulated,
            working_dir=str(wish.working_dir),
            session=wish.session,
            cell=wish.cell.to_json() if wish.cell else None,
        )
        write_json(run.submission, submission.to_json())

    def _mark_failed(self, handle: Handle, cause: str) -> None:
        end = End(Ending.FAILED, cause, time.time())
        self.reconciler.take(handle, Observation(Word.ENDED, reason=cause, end=end))

    async def refresh(self) -> list[Record]:
        """All records, newest first, those that live brought up to date with one look at each scheduler."""
        await self.reconciler.refresh([record.handle for record in self.store.living()])
        self.store.tidy()
        return self.store.all()

    async def cancel(self, handle: Handle) -> None:
        """Ask the scheduler to take the GPUs back. Idempotent."""
        with suppress(OSError):  # a full disk must not keep the GPUs
            self.store.update(handle.uid, lambda status: status, Target.DOWN)
        await self.backend(handle.backend).cancel(handle)
        await self.reconciler.refresh([handle])


_made: dict[Path, Clusters] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In a forked child: their loop is not there, and nobody will let go of the lock."""
    global _lock
    _lock = threading.Lock()
    _made.clear()


os.register_at_fork(after_in_child=_forget)


def clusters_of(options: Options, make: Callable[[Options], Clusters] = Clusters) -> Clusters:
    """This process's one `Clusters` for a home: so that there is one reconciler, however many notebooks' cells ask."""
    with _lock:
        if options.home not in _made:
            _made[options.home] = make(options)
        _made[options.home].options = options
        return _made[options.home]

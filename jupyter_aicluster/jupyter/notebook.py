"""What one kernel holds, and how one of its cells runs on it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_aicluster.errors import NotFound, UsageError
from jupyter_aicluster.jupyter.cell_options import CellOptions
from jupyter_aicluster.jupyter.following import FirstInterrupt, follow
from jupyter_aicluster.jupyter.held import Held
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Fit, Plan
from jupyter_aicluster.protocol import CellRequest
from jupyter_aicluster.state import State
from jupyter_aicluster.travelled import Travelled
from jupyter_aicluster.units import format_duration

if TYPE_CHECKING:  # imported at first use: `%load_ext` must be quick
    from jupyter_aicluster.cells import CellRun
    from jupyter_aicluster.cluster import Cluster
    from jupyter_aicluster.jupyter.shipping import Shipment


class Notebook:
    """The clusters of one kernel, newest last, and its default flags."""

    def __init__(self, shell: Any, options: Callable[[], Options]) -> None:
        self.shell = shell
        self.options = options
        self.defaults: dict[str, object] = {}
        self.session = f"nb-{secrets.token_hex(4)}"
        self._held: dict[str, Held] = {}
        self._latest: Held | None = None  # also when it has ended
        self._seen: set[str] = set()  # cell runs whose names were brought back: not twice
        self._told: set[str] = set()  # what was said about plans: once is enough

    # -- which cluster ------------------------------------------------------------------------------------------------

    def living(self) -> list[Held]:
        """Newest last; ended ones are forgotten."""
        self._held = {name: held for name, held in self._held.items() if not held.cluster.status.ended}
        return list(self._held.values())

    def find(self, name: str | None, ended: bool = False) -> Held:
        """By name (attached if need be), or this notebook's latest (``ended``: even one that has ended). Raises `NotFound`."""
        from jupyter_aicluster.cluster import Cluster

        living = self.living()
        if name is None:
            if ended and self._latest is not None:
                return self._latest
            if not living:
                raise NotFound("this notebook holds no cluster", hint="%gpujob list shows yours, %gpujob use NAME takes one")
            return living[-1]
        for held in living if not ended or self._latest is None else [*living, self._latest]:
            if name in (held.name, held.cluster.handle.uid):
                return held
        return self.hold(Cluster.attach(name, options=self.options()), keep_s=self.options().keep_s)

    def adopt(self, name: str | None) -> Held:
        """The same, also of the latest that has ended, and go on in the session of the notebook that made it, with its variables."""
        mine = list(self._held)
        held = self.find(name, ended=True)
        if held.name not in mine and held.cluster.record.owner:
            held.session, held.names = held.cluster.record.owner, None
        self.use(held)
        return held

    def hold(self, cluster: Cluster, *, keep_s: float) -> Held:
        """Take note of it and follow it from now on."""
        held = self._held[cluster.name] = self._latest = Held(cluster, self.session, keep_s, self._seen, self.options().display)
        return held

    def use(self, held: Held) -> None:
        """Make it the latest."""
        self._held.pop(held.name, None)
        self._held[held.name] = self._latest = held

    def fitting(self, wanted: CellOptions) -> Held | None:
        """The held cluster that meets the cell's requirement; None: ask for a new one. Raises `UsageError` where neither can be."""
        if wanted.on is not None:
            held = self.find(wanted.on)
            if held.cluster.status.ended:
                raise UsageError(f"{held.name} has ended", hint="%%gpujob --gpus N asks for a new cluster")
            if wanted.spec is not None and not wanted.spec.satisfied_by(held.cluster.spec):
                raise UsageError(
                    f"{held.name} does not have what this cell requires", hint="leave the requirement out, or --new for another cluster"
                )
            return held
        if wanted.new and wanted.spec is not None:
            return None
        for held in reversed(self.living()):
            if held.cluster.status.state is not State.ENDING and (wanted.spec is None or wanted.spec.satisfied_by(held.cluster.spec)):
                return held
        if wanted.spec is None:
            raise UsageError("this notebook holds no cluster, and --gpus is never guessed", hint="%%gpujob --gpus 4")
        return None

    # -- a cell -------------------------------------------------------------------------------------------------------

    def run(self, wanted: CellOptions, cell: str) -> None:
        """Run ``cell`` and show everything as if it had happened here. Raises the cell's own exception where it raised one."""
        from jupyter_aicluster.cells import new_cell_id
        from jupyter_aicluster.jupyter.shipping import prepare

        held, options = self.fitting(wanted), self.options()
        there, kept = self._there(held, wanted)
        shipment = prepare(
            self.shell.transform_cell(cell),
            self.shell.user_ns,
            there=there,
            kept=kept,
            travelled=held.travelled if held and not wanted.spmd else Travelled(),
            also=wanted.inputs,
            only_back=wanted.outputs,
            max_bytes=wanted.max_ship_bytes if wanted.max_ship_bytes is not None else options.max_ship_bytes,
            folder=options.home / "tmp",
        )
        if shipment.notice:
            print(shipment.notice)  # noqa: T201
        keep_s = float(wanted.keep_s or (held.keep_s if held else 0.0))
        label = f"In [{len(self.shell.user_ns.get('In', ())) - 1}]"
        request = CellRequest(
            cell_id=new_cell_id(),
            session=held.session if held else self.session,
            code=cell,
            filename=f"<{label}>",
            inputs=shipment.sha256,
            outputs=shipment.expected,
            after_success_s=keep_s,
            after_failure_s=max(options.hold_s, keep_s),
            label=label,
            max_output_bytes=options.max_output_bytes,
            spmd=wanted.spmd,
            gather=wanted.gather,
            based=shipment.based,
            knows=not wanted.spmd and (held is None or held.names is not None),
            ours=wanted.inputs,
            theirs=wanted.outputs,
            gone=shipment.gone,
        )
        with FirstInterrupt() as pressed:
            try:
                held, run = self._submit(held, wanted, request, shipment)
            finally:
                shipment.remove()
            held.keep_s = keep_s
            if not wanted.spmd:
                held.sent(request, shipment.values)
            board = held.board(self.shell, run.cell_id, shipment.told, shipment.results)
            board.show()
        follow(self.shell, held, run, board, bool(pressed), (*shipment.sent, *shipment.expected, *wanted.gather))

    def _there(self, held: Held | None, wanted: CellOptions) -> tuple[Collection[str] | None, Collection[str]]:
        """Names that exist where the cell will run (None: not known), and those that need not be sent there again."""
        if held is None:
            return frozenset(), ()
        if not wanted.spmd or held.cluster.status.state is not State.READY:
            return held.names, ()
        ranks = held.look_at_ranks()
        return (None if held.names is None else ranks.names), ranks.kept(self.shell.user_ns)

    def _submit(self, held: Held | None, wanted: CellOptions, request: CellRequest, shipment: Shipment) -> tuple[Held, CellRun]:
        if held is not None:
            if wanted.retries:
                print(f"{held.name} is there already: should a node fall, this cell is not started again (--retries is for new clusters)")  # noqa: T201
            return held, held.cluster.cell(request, shipment.path)
        held = self.ask(wanted, keep_s=request.after_success_s, cell=request, payload=shipment.path)
        return held, held.cluster.run_of(request.cell_id)

    def ask(self, wanted: CellOptions, *, keep_s: float, cell: CellRequest | None = None, payload: Path | None = None) -> Held:
        """Ask for a new cluster, which then is the latest. Raises as `Cluster.ask` does."""
        from jupyter_aicluster.cluster import Cluster

        spec, options = wanted.spec, self.options()
        if spec is None:
            raise UsageError("how many GPUs?", hint="--gpus is never guessed: add --gpus N")
        folder = Path(spec.working_dir).expanduser() if spec.working_dir else Path.cwd()
        if not folder.is_dir():
            raise UsageError(f"--working-dir {spec.working_dir}: there is no such folder", hint="leave it out for the notebook's folder")
        job = cell is not None and not keep_s  # all that it needs is stored, so that it can start again
        cluster = Cluster.ask(
            spec,
            backend=wanted.backend or options.backend,
            options=options,
            session=self.session,
            owner=self.session,
            cell=cell,
            payload=payload,
            keep_s=keep_s or options.keep_s,
            retries=wanted.retries if wanted.retries is not None else options.retries if job else 0,
            working_dir=folder,
            on_plan=lambda plan: self._say_plan(plan, options.time_s if cell else options.up_time_s),
        )
        return self.hold(cluster, keep_s=keep_s)

    def _say_plan(self, plan: Plan, time_s: float) -> None:
        for line in plan_lines(plan, time_s):
            if line not in self._told and self.options().display != "none":
                self._told.add(line)
                print(line)  # noqa: T201


def plan_lines(plan: Plan, time_s: float) -> list[str]:
    """One line about every guess, and one about flags that this backend does not know."""
    if plan.fit is Fit.NEVER:
        return []  # the error says it all
    guesses = [f"{guess.text} ({guess.flag})" for guess in plan.guesses]
    if plan.spec.time_s is None and not any(guess.flag.startswith("-t") for guess in plan.guesses):
        guesses.append(f"limit {format_duration(time_s)} (-t)")
    lines = [f"{plan.backend}: " + " · ".join(guesses)] if guesses else []
    return [*lines, f"{plan.backend} does not know {', '.join(plan.skipped)}: left out"] if plan.skipped else lines

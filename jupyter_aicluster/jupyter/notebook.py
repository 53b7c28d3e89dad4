"""What one kernel holds, and how one of its cells runs on it."""

from __future__ import annotations

import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from jupyter_aicluster.errors import CellFailed, ClusterEnded, NotFound, UsageError
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.jupyter.card import Board
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.display import Replay, remote_error, short
from jupyter_aicluster.jupyter.parse import CellOptions
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Fit, Plan
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest
from jupyter_aicluster.state import Observation, State
from jupyter_aicluster.units import format_duration

if TYPE_CHECKING:  # imported at first use: `%load_ext` must be quick
    from jupyter_aicluster.cells import CellRun
    from jupyter_aicluster.cluster import Cluster
    from jupyter_aicluster.jupyter.shipping import Shipment

GIVE_BACK_S = 10.0  # a finished job's cell waits so long for its GPUs to be back, to say so in the saved notebook


class Held:
    """A cluster that this kernel uses, and the boards that show it. ``keep_s``: its stay after a cell that succeeds (0: a job's)."""

    def __init__(self, cluster: Cluster, session: str, keep_s: float) -> None:
        self.cluster, self.session, self.keep_s = cluster, session, keep_s
        self.names: set[str] | None = set()  # that its driver has from this notebook's cells; None: adopted, nobody here knows
        self._model = CardModel(name=cluster.name, backend=cluster.handle.backend, gpus=cluster.spec.gpus, asked_s=time.time())
        self._board: Board | None = None
        self._lock = threading.Lock()
        cluster.watch(self._change)

    @property
    def name(self) -> str:
        return self.cluster.name

    def board(self, shell: Any, cell_id: str, sent: Sequence[str] = (), expected: Sequence[str] = ()) -> Board:
        """A board for the running cell (``cell_id`` "": `%gpujob up`, no cell); the one before it becomes plain HTML."""
        with self._lock:
            if self._board is not None:
                self._board.retire()
            model = self._model.for_cell(cell_id, sent, expected, time.time())
            self._board = Board(model, shell, lambda event, seconds: press(self.cluster, cell_id, event, seconds))
            return self._board

    def _change(self, change: Observation | Event) -> None:
        with self._lock:
            self._model.fold(change)
            if self._board is not None:
                self._board.change(change)


class Notebook:
    """The clusters of one kernel, newest last, and its default flags."""

    def __init__(self, shell: Any, options: Callable[[], Options]) -> None:
        self.shell = shell
        self.options = options
        self.defaults: dict[str, object] = {}
        self.session = f"nb-{secrets.token_hex(4)}"
        self._held: dict[str, Held] = {}

    # -- which cluster ------------------------------------------------------------------------------------------------

    def living(self) -> list[Held]:
        """Newest last; ended ones are forgotten."""
        self._held = {name: held for name, held in self._held.items() if not held.cluster.status.ended}
        return list(self._held.values())

    def find(self, name: str | None, ended: bool = False) -> Held:
        """By name (attached if need be), or this notebook's latest (``ended``: even one that has ended). Raises `NotFound`."""
        from jupyter_aicluster.cluster import Cluster

        latest = list(self._held.values())[-1:]
        living = self.living()
        if name is None:
            if ended and latest:
                return latest[0]
            if not living:
                raise NotFound("this notebook holds no cluster", hint="%gpujob list shows yours, %gpujob use NAME takes one")
            return living[-1]
        for held in living:
            if name in (held.name, held.cluster.handle.uid):
                return held
        return self.hold(Cluster.attach(name, options=self.options()), keep_s=self.options().keep_s)

    def adopt(self, name: str | None) -> Held:
        """The same, and go on in the session of the notebook that made it, with its variables."""
        mine = list(self._held)
        held = self.find(name)
        if held.name not in mine and held.cluster.record.owner:
            held.session, held.names = held.cluster.record.owner, None
        self.use(held)
        return held

    def hold(self, cluster: Cluster, *, keep_s: float) -> Held:
        """Take note of it and follow it from now on."""
        held = self._held[cluster.name] = Held(cluster, self.session, keep_s)
        return held

    def use(self, held: Held) -> None:
        """Make it the latest."""
        self._held.pop(held.name, None)
        self._held[held.name] = held

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
        shipment = prepare(
            self.shell.transform_cell(cell),
            self.shell.user_ns,
            there=held.names if held else frozenset(),
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
        )
        with FirstInterrupt() as pressed:
            try:
                held, run = self._submit(held, wanted, request, shipment)
            finally:
                shipment.remove()
            held.keep_s = keep_s
            if held.names is not None:
                held.names.update(shipment.sent, shipment.expected)
            board = held.board(self.shell, run.cell_id, shipment.sent, shipment.expected)
            board.show()
        self.follow(held, run, board, bool(pressed))

    def _submit(self, held: Held | None, wanted: CellOptions, request: CellRequest, shipment: Shipment) -> tuple[Held, CellRun]:
        if held is not None:
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
        cluster = Cluster.ask(
            spec,
            backend=wanted.backend or options.backend,
            options=options,
            session=self.session,
            owner=self.session,
            cell=cell,
            payload=payload,
            keep_s=keep_s or options.keep_s,
            working_dir=folder,
            on_plan=lambda plan: say_plan(plan, options.time_s if cell else options.up_time_s),
        )
        return self.hold(cluster, keep_s=keep_s)

    def follow(self, held: Held, run: CellRun, board: Board, pressed: bool = False) -> None:
        """Show a cell run until it is over, put its names here, and raise what it raised. ``pressed``: ■ was, just before."""
        cluster = held.cluster
        try:
            self._wait(cluster, run, Replay(self.shell.display_pub, board.restore), pressed)
            report = run.report
            if report is not None and report.value_bytes:
                board.came_back(self._bring_back(cluster, report))
            if report is not None and report.phase == CellPhase.DONE and not held.keep_s:
                with suppress(KeyboardInterrupt):  # everything is here already
                    board.wait_ended(GIVE_BACK_S)
        finally:
            board.rest()
        raise_unless_done(cluster, report)

    def wait_ready(self, held: Held) -> None:
        """Show a cluster coming up until all its nodes have joined. ■ gives it back."""
        cluster = held.cluster
        board = held.board(self.shell, "")
        board.show()
        try:
            board.wait_settled()
        except KeyboardInterrupt:
            cluster.stop()
            raise short(KeyboardInterrupt("the request was given back")) from None
        finally:
            board.rest()
        if cluster.status.ended:
            raise_ended(cluster)

    def _wait(self, cluster: Cluster, run: CellRun, replay: Replay, pressed: bool) -> None:
        """Replay output until the cell run is over or its cluster is. ■ interrupts it; while it waits for GPUs, it cancels."""
        while True:
            try:
                if pressed:
                    pressed = False
                    raise KeyboardInterrupt
                if _pump(run, replay):
                    return
            except KeyboardInterrupt:
                started = run.report is not None and run.report.phase == CellPhase.RUNNING
                if not started and cluster.status.state is not State.READY:
                    cluster.stop()
                    raise short(KeyboardInterrupt("the request was given back; the cell did not run")) from None
                cluster.interrupt(run.cell_id)  # the hub ends the driver when it hears this a second time within 5 s

    def _bring_back(self, cluster: Cluster, report: CellReport) -> list[str]:
        from jupyter_aicluster.jupyter.shipping import bring_back

        names, stubs = bring_back(cluster.value(report.cell_id), self.shell.user_ns)
        for stub in stubs:
            print(f"{stub.name} stayed on {cluster.name}: {stub.why}", file=sys.stderr)  # noqa: T201
        return names


class FirstInterrupt:
    """While a request is on its way, ■ is only remembered, so that nothing is left behind half asked for; pressed twice it acts."""

    def __init__(self) -> None:
        self._pressed = False
        self._before: Any = None

    def __bool__(self) -> bool:
        return self._pressed

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True


def _pump(run: CellRun, replay: Replay) -> bool:
    """Show the next of what has come; True when the run is over and everything it printed was shown."""
    over = run.over  # asked first: what it printed is in the queue before this is true
    try:
        event = run.events.get(timeout=0 if over else 0.25)
    except Empty:
        return over
    if event.kind == Kind.OUTPUT:
        replay.show(event.data["output"])
    return False


def raise_unless_done(cluster: Cluster, report: CellReport | None) -> None:
    """Raise what the cell raised, or why it could not run."""
    if report is not None and report.phase == CellPhase.DONE:
        return
    if report is not None and report.error:
        raise remote_error(report)
    end = cluster.status.end
    cause = (report.cause if report is not None else "") or (end.cause if end else "") or "the cluster is gone"
    raise CellFailed(
        f"the cell did not finish on {cluster.name}: {cause}",
        evidence=end.evidence if end else "",
        hint=f"%gpujob logs {cluster.name} shows what the nodes said; run the cell again to ask for new GPUs",
    )


def raise_ended(cluster: Cluster) -> NoReturn:
    end = cluster.status.end
    raise ClusterEnded(
        f"{cluster.name} never came up: {end.cause if end else 'it is gone'}",
        evidence=end.evidence if end else "",
        hint="%gpujob up again asks anew",
    )


def press(cluster: Cluster, cell_id: str, event: str, seconds: float) -> None:
    """A button of the card."""
    if event == "keep":
        cluster.keep(seconds)
    elif event == "stop" or (event == "interrupt" and (not cell_id or cluster.status.state is not State.READY)):
        cluster.stop(wait_s=0)
    elif event == "interrupt":
        cluster.interrupt(cell_id)


def say_plan(plan: Plan, time_s: float) -> None:
    """One line about every guess, and one about flags that this backend does not know."""
    if plan.fit is Fit.NEVER:
        return  # the error says it all
    guesses = [f"{guess.text} ({guess.flag})" for guess in plan.guesses]
    if plan.spec.time_s is None and not any(guess.flag.startswith("-t") for guess in plan.guesses):
        guesses.append(f"limit {format_duration(time_s)} (-t)")
    if guesses:
        print(f"{plan.backend}: " + " · ".join(guesses))  # noqa: T201
    if plan.skipped:
        print(f"{plan.backend} does not know {', '.join(plan.skipped)}: left out")  # noqa: T201

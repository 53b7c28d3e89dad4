"""One cell run followed until it is over: its output shown, its names put here, its error raised."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from jupyter_aicluster.errors import AIClusterError, CellFailed, ClusterEnded
from jupyter_aicluster.events import Kind
from jupyter_aicluster.jupyter.board import Board
from jupyter_aicluster.jupyter.display import Replay, remote_error, short
from jupyter_aicluster.jupyter.held import Held
from jupyter_aicluster.protocol import CellPhase, CellReport
from jupyter_aicluster.state import State
from jupyter_aicluster.stubs import RemoteValue, Stub

if TYPE_CHECKING:  # imported at first use: `%load_ext` must be quick
    from jupyter_aicluster.cells import CellRun
    from jupyter_aicluster.cluster import Cluster

GIVE_BACK_S = 10.0  # a finished job's cell waits so long for its GPUs to be back, so that the next cell finds them free


def follow(shell: Any, held: Held, run: CellRun, board: Board, pressed: bool = False, names: Iterable[str] = ()) -> None:
    """Show a cell run until it is over, put its names here, and raise what it raised. ``pressed``: ■ was, just before.

    ``names``: those that it takes or gives.
    """
    cluster = held.cluster
    try:
        _wait(cluster, run, Replay(shell.display_pub, board.restore), pressed)
        held.seen.add(run.cell_id)
        report = run.report
        if report is not None:
            held.heard(report)
            for name in report.deleted:
                shell.user_ns.pop(name, None)
            if report.value_bytes:
                board.came_back(_bring_back(shell, held, report))
        if report is not None and report.phase == CellPhase.DONE and report.ranks and held.keep_s:
            with suppress(AIClusterError):  # it may be going already
                held.look_at_ranks().travelled(names, shell.user_ns)
        if report is not None and report.phase == CellPhase.DONE and not held.keep_s:
            with suppress(KeyboardInterrupt):  # everything is here already
                board.wait_ended(GIVE_BACK_S)
    finally:
        board.rest()
    raise_unless_done(cluster, report)


def wait_ready(held: Held, board: Board) -> None:
    """Show a cluster coming up until all its nodes have joined. ■ gives it back. Raises `ClusterEnded`."""
    cluster = held.cluster
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


def _wait(cluster: Cluster, run: CellRun, replay: Replay, pressed: bool) -> None:
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


def _pump(run: CellRun, replay: Replay) -> bool:
    """Show the next of what has come; True when the run is over and everything it printed was shown."""
    over = run.over  # asked first: what it printed is in the queue before this is true
    try:
        event = run.events.get_nowait()
    except Empty:
        replay.flush()
        if over:
            return True
        try:
            event = run.events.get(timeout=0.25)
        except Empty:
            return False
    if event.kind == Kind.OUTPUT:
        replay.show(event.data["output"])
    return False


def _bring_back(shell: Any, held: Held, report: CellReport) -> list[str]:
    from jupyter_aicluster.jupyter.shipping import bring_back, worth_a_word

    space, cluster = shell.user_ns, held.cluster
    values = dict[str, object]()
    if report.names:
        values = bring_back(cluster.value(report.cell_id), space, held.own(report, space), cluster.value)
        held.received(report, values)
    gathered = cluster.gathered(report) if report.gathered else {}
    space.update(gathered)
    for value in values.values():
        if isinstance(value, RemoteValue):
            print(f"{value!r} %gpujob fetch {value.name} puts it here, also when {held.name} has ended", file=sys.stderr)  # noqa: T201
        elif isinstance(value, Stub):
            print(f"{value.name} stayed on {held.name}: {value.why}", file=sys.stderr)  # noqa: T201
    return [*worth_a_word(values), *gathered]

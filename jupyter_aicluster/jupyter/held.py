"""A cluster that this kernel uses, and the board that shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.jupyter.board import Board
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.faces import open_face
from jupyter_aicluster.jupyter.ranknames import RankNames
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.state import Observation, State, Word
from jupyter_aicluster.travelled import Travelled

if TYPE_CHECKING:  # imported at first use: `%load_ext` must be quick
    from jupyter_aicluster.cluster import Cluster


class Held:
    """``keep_s``: its stay after a cell that succeeds (0: a job's). ``seen``: cell runs of any cluster whose end was shown here."""

    def __init__(self, cluster: Cluster, session: str, keep_s: float, seen: set[str], display: str) -> None:
        self.cluster, self.session, self.keep_s = cluster, session, keep_s
        self._display = display
        self.names: set[str] | None = set()  # that its driver has from this notebook's cells; None: adopted, nobody here knows
        self.ranks = RankNames()  # the same of its ranks
        self.travelled = Travelled()  # between this notebook and its driver
        self._before: tuple[CellRequest, Travelled] | None = None  # the cell run on its way, and how things stood before it
        self.seen = seen
        self._model = CardModel(
            name=cluster.name,
            backend=cluster.handle.backend,
            gpus=cluster.spec.gpus,
            asked_s=cluster.record.created_s,
            checkpointed=_checkpoints(RunDir(cluster.record.run)),
        )
        self._board: Board | None = None
        self._lock = threading.Lock()
        self._told = threading.Event()
        cluster.watch(self._change)

    @property
    def name(self) -> str:
        return self.cluster.name

    def forget(self) -> None:
        """Its processes for this notebook are fresh ones: they have no names."""
        self.names, self.ranks, self.travelled, self._before = set(), RankNames(), Travelled(), None

    def look_at_ranks(self) -> RankNames:
        """What its ranks have: nothing, if they are other processes by now."""
        start = int(self.cluster.snapshot()["sessions"].get(self.session, {}).get("ranks", 0))
        if start != self.ranks.start:
            self.ranks = RankNames(start)
        return self.ranks

    def hear_out(self, timeout_s: float = 5.0) -> CellReport | None:
        """Of a cluster that has ended: its last cell run's report, once all that was said of it was heard."""
        self._told.wait(timeout_s)
        return self._model.report

    def sent(self, request: CellRequest, values: Mapping[str, object]) -> None:
        """A cell is on its way with these values."""
        self._before = request, self.travelled.copy()
        self.travelled.note(request.cell_id, values)
        self.travelled.forget(request.gone)
        if self.names is not None:
            self.names -= set(request.gone)
            self.names.update(values, request.outputs)

    def own(self, report: CellReport, namespace: Mapping[str, object]) -> set[str]:
        """Names that come back with a cell run and are to stay as they are here, because the notebook has changed them since."""
        request, _ = self._before or (None, None)
        if report.ranks or request is None or request.cell_id != report.cell_id:
            return set()
        return self.travelled.own(report.names, namespace, {*request.outputs, *request.based})

    def received(self, report: CellReport, values: Mapping[str, object]) -> None:
        """These came back. What came from ranks is news to the driver."""
        if not report.ranks:
            self.travelled.received(report.cell_id, values, report.along)

    def heard(self, report: CellReport) -> None:
        """A cell run is over: believe of the driver's names what its report says."""
        if report.ranks:
            return
        if not report.admitted and self._before is not None and self._before[0].cell_id == report.cell_id:
            self.travelled = self._before[1]
        self.travelled.forget([*report.lacks, *report.deleted])
        if self.names is not None:
            self.names.update(report.names)
            self.names.difference_update(report.lacks, report.deleted)
        if report.phase == CellPhase.LOST:
            self.forget()

    def board(self, shell: Any, cell_id: str | None, sent: Sequence[str] = (), expected: Sequence[str] = ()) -> Board:
        """A board for the running cell (``cell_id`` "": `%gpujob up`, no cell; None: the latest); the one before it retires."""
        with self._lock:
            if self._board is not None:
                self._board.retire()
            asked_s = self._model.asked_s if cell_id is None else time.time()
            model = self._model.for_cell(cell_id, sent, expected, asked_s)

            def pressed(event: str, seconds: float) -> None:
                press(self.cluster, cell_id or "", event, seconds)

            self._board = Board(model, open_face(model, shell, pressed, self._display))
            return self._board

    def _change(self, change: Observation | Event) -> None:
        if isinstance(change, Observation) and change.word is Word.ENDED and change.end is None:
            change = replace(change, end=self.cluster.status.end)  # another process has seen it first
        with self._lock:
            self._model.fold(change)
            if self._board is not None:
                self._board.change(change)
        if isinstance(change, Event) and change.kind == Kind.END:
            self._told.set()
        if isinstance(change, Event) and _starts_afresh(change, self.session):
            self.forget()


def _starts_afresh(event: Event, session: str) -> bool:
    """Whether it says that the session's processes are other ones from now on."""
    if event.kind == Kind.STATE:
        return event.data.get("state") == State.STARTING and event.attempt > 1
    return event.kind == Kind.NOTICE and event.data.get("fresh") == session


def _checkpoints(run: RunDir) -> Callable[[str], bool | None]:
    """Whether a cell run has written to its checkpoint_dir; None where that lies on a disk which is not here."""

    def written(cell_id: str) -> bool | None:
        return any((run.checkpoints / cell_id).glob("*")) if run.checkpoints.is_dir() else None

    return written


def press(cluster: Cluster, cell_id: str, event: str, seconds: float) -> None:
    """A button of the card."""
    if event == "keep":
        cluster.keep(seconds)
    elif event == "stop" or (event == "interrupt" and (not cell_id or cluster.status.state is not State.READY)):
        cluster.stop(wait_s=0)
    elif event == "interrupt":
        cluster.interrupt(cell_id)

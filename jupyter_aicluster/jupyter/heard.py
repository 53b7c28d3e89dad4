"""What was heard of one cluster: observations and events folded, in the order they came. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_aicluster.events import Event
from jupyter_aicluster.jupyter.logtail import RAY, LogTail, writer_of
from jupyter_aicluster.jupyter.nodes import Nodes
from jupyter_aicluster.protocol import CellPhase, CellReport
from jupyter_aicluster.state import End, Observation, State, Status, Target, Word, transition

_WORD_OF: dict[str, Word] = {State.STARTING: Word.GRANTED, State.READY: Word.READY, State.ENDING: Word.RELEASING, State.QUEUED: Word.QUEUED}
MOST_NOTICES = 5


def _cannot_see(cell_id: str) -> bool | None:
    return None


@dataclass(kw_only=True)
class Heard:
    """One cluster as one cell hears of it. ``cell_id`` is that cell's run ("": none; None: whichever is latest)."""

    cell_id: str | None = None
    status: Status = field(default_factory=Status)
    report: CellReport | None = None
    joined_s: float | None = None
    nodes: Nodes = field(default_factory=Nodes)
    log: LogTail = field(default_factory=LogTail)
    deadlines: dict[str, float] = field(default_factory=dict)
    checkpointed: Callable[[str], bool | None] = (
        _cannot_see  # whether a cell run has written to its checkpoint_dir; None: not seen from here
    )
    _end: End | None = None  # as the hub said it; over is over only when the scheduler says that the GPUs are back
    _attempt: int = 1  # of the last STATE event: the status may know of it from an observation already
    _notices: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTICES))

    def fold(self, change: Observation | Event) -> bool:
        """Take in one change. True where it is a change of state, not of numbers or log lines: worth showing at once."""
        if isinstance(change, Observation):
            before = self.status
            self.status = transition(self.status, Target.UP, change)
            return _shown(before) != _shown(self.status)
        take = getattr(self, f"_on_{change.kind}", None)
        if take is None:  # a kind that only a newer hub knows
            return False
        return bool(take(change, change.data))

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_state(self, event: Event, data: Mapping[str, Any]) -> bool:
        attempt, cause = int(data.get("attempt", event.attempt)), str(data.get("cause", ""))
        word = _WORD_OF.get(str(data.get("state")), Word.UNKNOWN)
        if attempt > self._attempt:
            self._attempt = attempt
            self.nodes.fall()
            if cause:
                self._notices.append(f"Attempt {attempt}: {cause}; all start again together")
        self.status = transition(self.status, Target.UP, Observation(word, attempt=attempt, reason=cause))
        if word is Word.READY:
            self.log.forget(RAY)
            self.joined_s = self.joined_s or event.time_s
        return True

    def _on_gate(self, event: Event, data: Mapping[str, Any]) -> bool:
        self.nodes.gate(str(data["gate"]), int(data["have"]), int(data["want"]), tuple(data.get("missing") or ()))
        return True

    def _on_node(self, event: Event, data: Mapping[str, Any]) -> bool:
        self.nodes.hear(int(data["node"]), str(data.get("host") or ""), str(data.get("state") or ""), tuple(data.get("gpus") or ()))
        return True

    def _on_cell(self, event: Event, data: Mapping[str, Any]) -> bool:
        report = CellReport.from_json(data)
        if self.cell_id not in (None, report.cell_id):
            return False
        if report.phase == CellPhase.WAITING and self.report is not None and report.attempt > self.report.attempt:
            self._notices.append(_AGAIN[self.checkpointed(report.cell_id)])
        self.report = report
        return True

    def _on_notice(self, event: Event, data: Mapping[str, Any]) -> bool:
        self._notices.append(str(data["text"]))
        return True

    def _on_deadline(self, event: Event, data: Mapping[str, Any]) -> bool:
        self.deadlines = {str(what): float(at_s) for what, at_s in data["deadlines"].items()}
        return True

    def _on_end(self, event: Event, data: Mapping[str, Any]) -> bool:
        self._end = End.from_json(dict(data))
        seen = Observation(Word.RELEASING, attempt=event.attempt, reason=self._end.cause)
        self.status = transition(self.status, Target.UP, seen)
        self.deadlines.clear()
        return True

    def _on_log(self, event: Event, data: Mapping[str, Any]) -> bool:
        stream = str(data["stream"])
        if self.status.state is not State.READY or writer_of(stream) != RAY:  # how Ray starts is of interest while it does
            self.log.take(int(data["node"]), stream, str(data["text"]))
        return False

    def _on_gpus(self, event: Event, data: Mapping[str, Any]) -> bool:
        self.nodes.sample(int(data["node"]), data["samples"])
        return False

    # -- what is so ---------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> CellPhase | None:
        """Where this card's cell stands; None before the hub has said anything, LOST for a word that we do not know."""
        if self.report is None:
            return None
        return CellPhase(self.report.phase) if self.report.phase in list(CellPhase) else CellPhase.LOST

    @property
    def cell_over(self) -> bool:
        return self.phase is not None and self.phase.over

    @property
    def running(self) -> bool:
        return self.phase is CellPhase.RUNNING and not self.status.ended

    @property
    def stays(self) -> bool:
        """Whether the GPUs are held though the cell is over: by ``--keep``, or because somebody pressed Keep while it ran."""
        return self.cell_over and bool(self.deadlines.keys() & {"keep", "hold"})

    @property
    def end(self) -> End | None:
        return self.status.end or self._end

    @property
    def notices(self) -> Sequence[str]:
        return tuple(self._notices)


_AGAIN = {  # by whether the cell has written to its checkpoint_dir
    True: "The cell starts again and resumes from checkpoint_dir, if its code reads it",
    False: "The cell starts again from the beginning: nothing was written to checkpoint_dir",
    None: "The cell starts again from its stored inputs",
}


def _shown(status: Status) -> tuple[object, ...]:
    seen = status.observation
    return status.state, status.attempt, seen.reason, seen.position, seen.queue_length, seen.starts_at_s, status.end

"""What the card, the receipt and the text lines show of one cluster, derived from what was heard of it. Pure; times are handed in.

`CardModel.to_json` is the ``Snapshot`` of labextension/src/card/model.ts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_aicluster.jupyter.heard import Heard
from jupyter_aicluster.protocol import CellPhase
from jupyter_aicluster.state import Ending, State
from jupyter_aicluster.units import format_duration

_COUNTDOWNS = {
    "time": "Time limit: GPUs go back in",
    "hold": "GPUs go back in",
    "keep": "Idle: GPUs go back in",
    "lease": "Nobody watches: GPUs go back in",
}
_ENDINGS = {
    Ending.STOPPED: ("Stopped", "idle"),
    Ending.DONE: ("Done", "good"),
    Ending.IDLE: ("Ended, unused", "idle"),
    Ending.TIME: ("Ended, out of time", "warn"),
    Ending.LEASE: ("Ended, nobody watched and nothing ran", "idle"),
    Ending.FAILED: ("Failed", "bad"),
}
_PHASES = {
    CellPhase.DONE: "Done",
    CellPhase.FAILED: "Failed",
    CellPhase.INTERRUPTED: "Interrupted",
    CellPhase.LOST: "Lost",
}
_WAITS = (State.SUBMITTED, State.QUEUED)
_TONES = {State.SUBMITTED: "wait", State.QUEUED: "wait", State.STARTING: "wait", State.READY: "good"}


@dataclass(kw_only=True)
class CardModel(Heard):
    """One cluster as one cell shows it."""

    name: str
    backend: str
    gpus: int
    asked_s: float
    names_sent: Sequence[str] = ()
    names_expected: Sequence[str] = ()
    names_back: Sequence[str] | None = None  # what came back and is worth a word; None: nothing was fetched yet
    line: str = "none"
    inputs_here: str = ""  # "40 MB of inputs": still in this kernel, so it must stay until the cluster has started
    dashboard: str = ""

    def for_cell(self, cell_id: str | None, sent: Sequence[str], expected: Sequence[str], now_s: float) -> CardModel:
        """A model for the next cell on the same cluster: it knows its nodes and state, and has a clock and log of its own."""
        new = copy.deepcopy(self)
        new.cell_id, new.names_sent, new.names_expected, new.asked_s = cell_id, sent, expected, now_s
        new.names_back = None
        if new.report is not None and cell_id not in (None, new.report.cell_id):
            new.report = None
        new._notices.clear()
        new.log.clear()
        return new

    def sentence(self, now_s: float) -> str:
        """The one line that says it all, without the clock."""
        state = self.status.state
        if self.cell_over:
            mend = ": mend the cell and run it again" if self.phase is CellPhase.FAILED else ""
            gpus = {State.ENDED: f"{self._gpus} given back", State.ENDING: "giving the GPUs back"}.get(state, f"{self._gpus} held{mend}")
            return f"{self._cell_sentence()} · {gpus}"
        if state is State.ENDED:
            return self._ended_sentence()
        if state is State.SUBMITTED:
            return f"Asking for {self._gpus}"
        if state is State.QUEUED:
            return self._queue_sentence()
        again = f" again (attempt {self.status.attempt})" if self.status.attempt > 1 else ""
        if state is State.STARTING:
            gate = self.nodes.progress()
            progress = f" · {gate[1]} of {gate[2]} nodes {'joined' if gate[0] == 'joined' else 'connected'}" if gate and gate[2] else ""
            return f"{'Restarting' if again else 'Starting'}{again.removeprefix(' again')} on {self._gpus}{progress}"
        if state is State.ENDING:
            return "Giving the GPUs back"
        if self.running:
            busy = self.nodes.busy()
            return f"Running {self._as()}" + (f" · {busy[0]}/{busy[1]} GPUs busy" if busy else "")
        if self.phase is CellPhase.WAITING:
            return f"{self._gpus} ready · the cell is about to run"
        return f"Ready{again} · {self._gpus} held"

    def safe_to_close(self) -> str:
        """Whether the person may leave."""
        if self.end is not None or self.status.ended or self.cell_over:
            return ""
        if self.inputs_here and self.status.state in _WAITS:
            return f"Keep this kernel until it starts: {self.inputs_here} are still here"
        return f"Safe to close this notebook: %gpujob attach {self.name} brings it back"

    def summary(self) -> dict[str, Any] | None:
        end = self.end
        if end is None:
            return None
        wasted = end.used_gpus is not None and end.joined_s is not None and 0 < end.used_gpus < end.gpus
        return {
            "ending": str(end.ending),
            "cause": end.cause,
            "gpu_hours_held": end.held_gpu_s / 3600,
            "gpu_hours_used": None if end.busy_gpu_s is None else end.busy_gpu_s / 3600,
            "waited_s": None if end.joined_s is None else max(0.0, end.joined_s - self.asked_s),
            "ran_s": None if end.joined_s is None else max(0.0, end.ended_s - end.joined_s),
            "peak_mem_bytes": end.peak_mem_bytes,
            "hint": f"{end.used_gpus} of {end.gpus} GPUs were ever busy: --gpus {end.used_gpus} would have been enough" if wasted else "",
        }

    def error(self) -> str:
        """A failed cell's exception in one line; of one that was lost or interrupted the sentence says enough."""
        if self.report is None or not self.report.error or self.phase is not CellPhase.FAILED:
            return ""
        first = (str(self.report.error.get("evalue", "")).splitlines() or [""])[0]
        return f"{self.report.error.get('ename', 'Error')}: {first}".removesuffix(": ")

    def tone(self) -> str:
        if self.phase is CellPhase.DONE:
            return "good"
        if self.phase in (CellPhase.FAILED, CellPhase.LOST):
            return "bad"
        if self.phase is CellPhase.INTERRUPTED:
            return "warn"
        if self.end is not None:
            return _ENDINGS[self.end.ending][1]
        return "run" if self.running else _TONES.get(self.status.state, "idle")

    def to_json(self, now_s: float) -> dict[str, Any]:
        """Snapshot of model.ts."""
        state = self.status.state
        since_s, limit_s = self._clock()
        return {
            "now_s": now_s,
            "name": self.name,
            "backend": self.backend,
            "gpus": self.gpus,
            "state": str(state),
            "tone": self.tone(),
            "attempt": self.status.attempt,
            "sentence": self.sentence(now_s),
            "since_s": since_s,
            "limit_s": limit_s,
            "safe_to_close": self.safe_to_close(),
            "gates": self.nodes.gates_json(),
            "nodes": self.nodes.to_json(),
            "countdowns": self._countdowns(limit_s),
            "names_sent": list(self.names_sent),
            "names_expected": list(self.names_expected if not self.cell_over else self.names_back or ()),
            "notices": list(self.notices),
            "error": self.error(),
            "can_interrupt": not self.status.ended and (self.running or state in _WAITS),
            "can_keep": state is State.READY,
            "can_stop": state not in (State.ENDING, State.ENDED),
            "line": self.line,
            "dashboard": self.dashboard,
            "summary": self.summary(),
        }

    # -- pieces -------------------------------------------------------------------------------------------------------

    @property
    def _gpus(self) -> str:
        return f"{self.gpus} {'simulated ' if self.nodes.simulated else ''}GPU{'s' if self.gpus != 1 else ''}"

    def _as(self) -> str:
        if self.report is None or not self.report.ranks:
            return "as one process"
        ranks = self.report.ranks
        return f"once per {'node' if self.report.per == 'node' else 'GPU'}, {ranks} rank{'s' if ranks != 1 else ''}"

    def _clock(self) -> tuple[float | None, float | None]:
        """(start of the clock, its limit): of the wait until it runs, then of the run."""
        if self.end is not None or self.status.ended or self.cell_over:
            return None, None
        if not self.running or self.report is None or self.report.started_s is None:
            return (None, None) if self.status.state is State.READY else (self.asked_s, None)
        since_s = self.report.started_s
        if self.joined_s is not None and 0 <= since_s - self.joined_s < 60:
            since_s = self.joined_s  # the cell came with its cluster: one clock for both, so that the limit is the one asked for
        limit = self.deadlines.get("time")
        return since_s, None if limit is None else max(0.0, limit - since_s)

    def _countdowns(self, limit_s: float | None) -> list[dict[str, Any]]:
        """What comes first; a time limit that stands in the clock already is left out."""
        coming = sorted((at_s, what) for what, at_s in self.deadlines.items() if what != "time" or limit_s is None)
        return [{"what": what, "text": _COUNTDOWNS.get(what, what), "at_s": at_s} for at_s, what in coming[:1]]

    def _queue_sentence(self) -> str:
        seen = self.status.observation
        place = f"{_ordinal(seen.position)} of {seen.queue_length}" if seen.position and seen.queue_length else ""
        about = f"about {time.strftime('%H:%M', time.localtime(seen.starts_at_s))} (the scheduler's estimate)" if seen.starts_at_s else ""
        head = seen.reason if seen.reason.startswith("Waiting") else f"Waiting{': ' + seen.reason if seen.reason else ''}"
        return " · ".join(part for part in (head, place, about) if part)

    def _cell_sentence(self) -> str:
        assert self.report is not None
        took = cause = ""
        if self.report.started_s is not None and self.report.ended_s is not None:
            took_s = self.report.ended_s - self.report.started_s
            took = f" after {format_duration(took_s)}" if took_s >= 1 else " in under 1 s"
        if self.phase is CellPhase.LOST and self.report.cause:
            cause = f": {self.report.cause}"
        return f"{_PHASES[self.phase or CellPhase.LOST]}{took}{cause}"

    def _ended_sentence(self) -> str:
        if self.end is None:
            return "Ended"
        word = _ENDINGS[self.end.ending][0]
        return f"{word}: {self.end.cause}" if self.end.cause else word


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

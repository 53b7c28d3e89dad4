"""What the card, the receipt and the text lines show of one cluster: observations and events folded. Pure; times are handed in.

`CardModel.to_json` is the ``Snapshot`` of labextension/src/card/model.ts.
"""

from __future__ import annotations

import copy
import re
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_aicluster.events import Event
from jupyter_aicluster.protocol import CellPhase, CellReport
from jupyter_aicluster.state import End, Ending, Observation, State, Status, Target, Word, transition
from jupyter_aicluster.units import format_duration

LOG_LINES = 200
LOG_BYTES = 24_000
_LINE_CHARS = 2_000
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BUSY_PERCENT = 5.0
_FRAME = struct.Struct("<4f")
_NAN = float("nan")
_LOST = -1.0

_WORD_OF: dict[str, Word] = {State.STARTING: Word.GRANTED, State.READY: Word.READY, State.ENDING: Word.RELEASING, State.QUEUED: Word.QUEUED}
_COUNTDOWNS = {
    "time": "Time is up in",
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
_TONES = {
    State.SUBMITTED: "wait",
    State.QUEUED: "wait",
    State.STARTING: "wait",
    State.READY: "idle",
    State.ENDING: "idle",
    State.ENDED: "idle",
}


@dataclass
class _Node:
    host: str = ""
    state: str = ""
    gpus: tuple[Mapping[str, Any], ...] = ()
    samples: dict[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class CardModel:
    """One cluster as one cell sees it. ``cell_id`` is the cell run this card belongs to ("": none; None: whichever is latest)."""

    name: str
    backend: str
    gpus: int
    asked_s: float
    cell_id: str | None = None
    names_sent: Sequence[str] = ()
    names_expected: Sequence[str] = ()
    line: str = "none"
    inputs_here: str = ""  # "40 MB of inputs": still in this kernel, so it must stay until the cluster has started
    status: Status = field(default_factory=Status)
    report: CellReport | None = None
    names_back: Sequence[str] | None = None  # what came back and is worth a word; None: nothing was fetched yet
    dashboard: str = ""
    joined_s: float | None = None
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _gates: dict[str, tuple[int, int]] = field(default_factory=dict)
    _missing: tuple[int, ...] = ()
    _deadlines: dict[str, float] = field(default_factory=dict)
    _notices: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    _log: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    _open_lines: dict[tuple[int, str], str] = field(default_factory=dict)

    def for_cell(self, cell_id: str, sent: Sequence[str], expected: Sequence[str], now_s: float) -> CardModel:
        """A model for the next cell on the same cluster: it knows its nodes and state, and has a clock and log of its own."""
        new = copy.deepcopy(self)
        new.cell_id, new.names_sent, new.names_expected, new.asked_s = cell_id, sent, expected, now_s
        new.names_back = None
        if new.report is not None and new.report.cell_id != cell_id:
            new.report = None
        new._notices.clear()
        new._log.clear()
        new._open_lines.clear()
        return new

    # -- folding ------------------------------------------------------------------------------------------------------

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

    def _on_state(self, event: Event, data: Mapping[str, Any]) -> bool:
        attempt = int(data.get("attempt", event.attempt))
        word = _WORD_OF.get(str(data.get("state")), Word.UNKNOWN)
        if attempt > self.status.attempt:
            self._gates.clear()
            self._missing = ()
        self.status = transition(self.status, Target.UP, Observation(word, attempt=attempt, reason=str(data.get("cause", ""))))
        if word is Word.READY and self.joined_s is None:
            self.joined_s = event.time_s
        return True

    def _on_gate(self, event: Event, data: Mapping[str, Any]) -> bool:
        self._gates[str(data["gate"])] = (int(data["have"]), int(data["want"]))
        self._missing = tuple(data.get("missing") or ())
        return True

    def _on_node(self, event: Event, data: Mapping[str, Any]) -> bool:
        node = self._nodes.setdefault(int(data["node"]), _Node())
        node.host = str(data.get("host") or node.host)
        node.state = str(data.get("state") or node.state)
        node.gpus = tuple(data.get("gpus") or node.gpus)
        if node.state in ("lost", "left"):
            node.samples.clear()
        return True

    def _on_cell(self, event: Event, data: Mapping[str, Any]) -> bool:
        report = CellReport.from_json(data)
        if self.cell_id not in (None, report.cell_id):
            return False
        self.report = report
        return True

    def _on_notice(self, event: Event, data: Mapping[str, Any]) -> bool:
        self._notices.append(str(data["text"]))
        return True

    def _on_deadline(self, event: Event, data: Mapping[str, Any]) -> bool:
        self._deadlines = {str(what): float(at_s) for what, at_s in data["deadlines"].items()}
        return True

    def _on_end(self, event: Event, data: Mapping[str, Any]) -> bool:
        end = End.from_json(dict(data))
        self.status = transition(self.status, Target.UP, Observation(Word.ENDED, attempt=event.attempt, reason=end.cause, end=end))
        self._deadlines.clear()
        return True

    def _on_log(self, event: Event, data: Mapping[str, Any]) -> bool:
        """The newest text of one stream; a carriage return overwrites its line, as in a terminal."""
        key = (int(data["node"]), str(data["stream"]))
        *whole, rest = (self._open_lines.pop(key, "") + str(data["text"])).split("\n")
        self._log.extend((*key, _last_written(line)) for line in whole[-LOG_LINES:])
        if rest:
            self._open_lines[key] = rest[-_LINE_CHARS:]
        return False

    def _on_gpus(self, event: Event, data: Mapping[str, Any]) -> bool:
        node = self._nodes.setdefault(int(data["node"]), _Node())
        node.samples = {str(sample["index"]): sample for sample in data["samples"]}
        return False

    # -- what follows from it -----------------------------------------------------------------------------------------

    @property
    def phase(self) -> CellPhase | None:
        """Where this card's cell stands; None before the hub has said anything, LOST for a word that we do not know."""
        if self.report is None:
            return None
        return CellPhase(self.report.phase) if self.report.phase in list(CellPhase) else CellPhase.LOST

    @property
    def running(self) -> bool:
        return self.phase is CellPhase.RUNNING and not self.status.ended

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(self._notices)

    @property
    def end(self) -> End | None:
        return self.status.end

    def sentence(self, now_s: float) -> str:
        """The one line that says it all, without the clock."""
        state, seen = self.status.state, self.status.observation
        if state is State.ENDED:
            return self._ended_sentence()
        if self.phase is not None and self.phase.over:
            return f"{self._cell_sentence()} · {'giving the GPUs back' if state is State.ENDING else f'{self._gpus} still held'}"
        if state is State.SUBMITTED:
            return f"Asking for {self._gpus}"
        if state is State.QUEUED:
            place = f"{_ordinal(seen.position)} of {seen.queue_length}" if seen.position and seen.queue_length else ""
            about = (
                f"about {time.strftime('%H:%M', time.localtime(seen.starts_at_s))} (the scheduler's estimate)" if seen.starts_at_s else ""
            )
            head = seen.reason if seen.reason.startswith("Waiting") else f"Waiting{': ' + seen.reason if seen.reason else ''}"
            return " · ".join(part for part in (head, place, about) if part)
        again = f" again (attempt {self.status.attempt})" if self.status.attempt > 1 else ""
        if state is State.STARTING:
            name, (have, want) = next(reversed(self._gates.items()), ("", (0, 0)))
            progress = f" · {have} of {want} nodes {'joined' if name == 'joined' else 'connected'}" if want else ""
            return f"Starting{again} on {self._gpus}{progress}"
        if state is State.ENDING:
            return "Giving the GPUs back"
        if self.running:
            busy = self.busy()
            return "Running in one process, Ray spreads its work" + (f" · {busy[0]}/{busy[1]} GPUs busy" if busy else "")
        if self.phase is CellPhase.WAITING:
            return f"{self._gpus} ready · the cell is about to run"
        return f"Ready{again} · {self._gpus} held"

    def busy(self) -> tuple[int, int] | None:
        """(GPUs over 5 %, GPUs that can be read); None where none can be."""
        loads = [sample.get("util_percent") for node in self._nodes.values() for sample in node.samples.values()]
        readable = [load for load in loads if load is not None]
        return (sum(load > _BUSY_PERCENT for load in readable), len(readable)) if readable else None

    def safe_to_close(self) -> str:
        """Whether the person may leave."""
        if self.status.ended or (self.phase is not None and self.phase.over):
            return ""
        if self.inputs_here and self.status.state in (State.SUBMITTED, State.QUEUED):
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
        """The cell's exception in one line."""
        if self.report is None:
            return ""
        if self.report.error:
            first = (str(self.report.error.get("evalue", "")).splitlines() or [""])[0]
            return f"{self.report.error.get('ename', 'Error')}: {first}".removesuffix(": ")
        return self.report.cause if self.phase is CellPhase.LOST else ""

    def tone(self) -> str:
        if self.phase is CellPhase.DONE:
            return "good"
        if self.phase in (CellPhase.FAILED, CellPhase.LOST):
            return "bad"
        if self.phase is CellPhase.INTERRUPTED:
            return "warn"
        if self.end is not None:
            return _ENDINGS[self.end.ending][1]
        return "run" if self.running else "good" if self.status.state is State.READY else _TONES[self.status.state]

    def to_json(self, now_s: float) -> dict[str, Any]:
        """Snapshot of model.ts."""
        state = self.status.state
        since_s, limit_s = self._clock()
        over = self.phase is not None and self.phase.over
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
            "gates": {
                **{gate: self._gate(gate) for gate in ("connected", "joined")},
                "missing": [{"node": number, "host": self._node(number).host, "why": self._node(number).state} for number in self._missing],
            },
            "nodes": [
                {
                    "node": number,
                    "host": node.host,
                    "state": node.state,
                    "simulated": any(gpu.get("simulated") for gpu in node.gpus),
                    "gpus": [
                        {"index": str(gpu["index"]), "name": gpu.get("name", ""), "mem_total_bytes": gpu.get("mem_total_bytes")}
                        for gpu in node.gpus
                    ],
                }
                for number, node in sorted(self._nodes.items())
            ],
            "countdowns": [
                {"what": what, "text": _COUNTDOWNS.get(what, what), "at_s": at_s}
                for what, at_s in sorted(self._deadlines.items(), key=lambda item: item[1])
                if what != "time" or limit_s is None
            ],
            "names_sent": list(self.names_sent),
            "names_expected": list(self.names_expected if not over else self.names_back or ()),
            "notices": list(self._notices),
            "error": self.error(),
            "can_interrupt": not self.status.ended and (self.running or state in (State.SUBMITTED, State.QUEUED)),
            "can_keep": state is State.READY,
            "can_stop": state not in (State.ENDING, State.ENDED),
            "line": self.line,
            "dashboard": self.dashboard,
            "summary": self.summary(),
        }

    def frame(self) -> bytes:
        """The newest samples in the order of ``to_json()["nodes"][]["gpus"][]``, four float32 each; NaN where not readable."""
        packed = []
        for _, node in sorted(self._nodes.items()):
            for gpu in node.gpus:
                sample = node.samples.get(str(gpu["index"]), {})
                util = _LOST if sample.get("lost") else _float(sample.get("util_percent"))
                packed.append(
                    _FRAME.pack(util, _float(sample.get("mem_used_bytes")), _float(sample.get("power_w")), _float(sample.get("temp_c")))
                )
        return b"".join(packed)

    def log(self) -> list[dict[str, Any]]:
        """The newest lines, oldest first: at most `LOG_LINES` and `LOG_BYTES` together."""
        lines = [*self._log, *((*key, _last_written(text)) for key, text in self._open_lines.items())]
        shown: list[dict[str, Any]] = []
        room = LOG_BYTES
        for node, stream, text in reversed(lines[-LOG_LINES:]):
            room -= len(text.encode(errors="replace")) + len(stream) + 40
            if room < 0:
                break
            shown.append({"node": node, "stream": stream, "text": text})
        return shown[::-1]

    def _node(self, number: int) -> _Node:
        return self._nodes.get(number) or _Node(state="not heard of yet")

    # -- pieces -------------------------------------------------------------------------------------------------------

    @property
    def _gpus(self) -> str:
        simulated = any(gpu.get("simulated") for node in self._nodes.values() for gpu in node.gpus)
        return f"{self.gpus} {'simulated ' if simulated else ''}GPU{'s' if self.gpus != 1 else ''}"

    def _gate(self, name: str) -> dict[str, int] | None:
        return {"have": self._gates[name][0], "want": self._gates[name][1]} if name in self._gates else None

    def _clock(self) -> tuple[float | None, float | None]:
        """(start of the clock, its limit): of the wait until it runs, then of the run."""
        if self.status.ended or (self.phase is not None and self.phase.over):
            return None, None
        if not self.running or self.report is None or self.report.started_s is None:
            return (None, None) if self.status.state is State.READY else (self.asked_s, None)
        since_s = self.report.started_s
        if self.joined_s is not None and 0 <= since_s - self.joined_s < 60:
            since_s = self.joined_s  # the cell came with its cluster: one clock for both, so that the limit is the one asked for
        limit = self._deadlines.get("time")
        return since_s, None if limit is None else max(0.0, limit - since_s)

    def _cell_sentence(self) -> str:
        assert self.report is not None
        took = ""
        if self.report.started_s is not None and self.report.ended_s is not None:
            took = f" after {format_duration(self.report.ended_s - self.report.started_s)}"
        word = {CellPhase.DONE: "Done", CellPhase.INTERRUPTED: "Interrupted", CellPhase.LOST: "Lost"}.get(self.phase or CellPhase.LOST)
        return f"{word or self.error() or 'Failed'}{took}"

    def _ended_sentence(self) -> str:
        end = self.end
        if self.phase is not None and self.phase.over:
            return f"{self._cell_sentence()} · {self._gpus} given back"
        if end is None:
            return "Ended"
        word = _ENDINGS[end.ending][0]
        return f"{word}: {end.cause}" if end.cause else word


def _shown(status: Status) -> tuple[object, ...]:
    seen = status.observation
    return status.state, status.attempt, seen.reason, seen.position, seen.queue_length, seen.starts_at_s, status.end


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _last_written(line: str) -> str:
    return _COLOURS.sub("", line.rstrip("\r").rpartition("\r")[2])[:_LINE_CHARS]


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else _NAN

"""What a hub tells its clients: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


class Kind(StrEnum):
    """Kinds of events and the keys of their data. Journaled ones have a seq; live ones (seq 0) are latest-wins."""

    STATE = "state"  # state, attempt, cause
    GATE = "gate"  # gate ("connected" | "joined"), have, want, missing: [node], deadline_s
    NODE = "node"  # node, host, state ("connected" | "joined" | "lost" | "left"), gpus: [GpuInfo]
    CELL = "cell"  # cell_id, phase (CellPhase), see protocol.CellReport
    OUTPUT = "output"  # cell_id, output: as in nbformat, or update_display_data, clear_output
    NOTICE = "notice"  # text, level ("info" | "warning"): a sentence for the card
    DEADLINE = "deadline"  # deadlines: {"time" | "hold" | "keep" | "lease": Unix seconds}: all that are set
    END = "end"  # an End record
    LOG = "log"  # live: node, stream, offset, text: the newest lines of a log file
    GPUS = "gpus"  # live: node, samples: [GpuSample]
    PULSE = "pulse"  # live: time_s; keeps proxies and readers awake


LIVE = frozenset({Kind.LOG, Kind.GPUS, Kind.PULSE})


@dataclass(frozen=True, slots=True)
class Event:
    """``seq`` counts from 1 within an attempt; a reader resumes exactly at (attempt, seq)."""

    attempt: int
    seq: int
    time_s: float
    kind: str  # a Kind; an unknown word from a newer hub is kept as it is
    data: Mapping[str, Any]

    def to_line(self) -> bytes:
        return (
            json.dumps(
                {"a": self.attempt, "s": self.seq, "t": round(self.time_s, 3), "k": str(self.kind), "d": self.data}, separators=(",", ":")
            )
            + "\n"
        ).encode()

    @classmethod
    def from_line(cls, line: bytes | str) -> Self:
        """Raises ValueError on a line cut in half."""
        raw = json.loads(line)
        try:
            return cls(int(raw["a"]), int(raw["s"]), float(raw["t"]), str(raw["k"]), raw["d"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event: {line!r}") from error


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """Where a reader stands: everything up to and including (attempt, seq) was read. Text form ``ATTEMPT.SEQ``."""

    attempt: int = 0
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        attempt, _, seq = text.partition(".")
        return cls(int(attempt), int(seq or 0))

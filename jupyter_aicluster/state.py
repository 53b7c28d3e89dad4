"""What a cluster is doing, decided from what schedulers and hubs said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self


class State(StrEnum):
    """In the order of one attempt's life."""

    SUBMITTED = "submitted"  # the uid is recorded; the scheduler may or may not know it yet
    QUEUED = "queued"  # the scheduler holds the request
    STARTING = "starting"  # GPUs granted; node programs connect and raylets join
    READY = "ready"  # joined N/N
    ENDING = "ending"  # GPUs are being given back
    ENDED = "ended"


class Target(StrEnum):
    UP = "up"
    DOWN = "down"


class Word(StrEnum):
    """What one look at a scheduler or a hub showed. Evidence, not yet a state."""

    UNKNOWN = "unknown"  # no answer, or a word nobody knows: changes nothing
    ABSENT = "absent"  # the scheduler answers and does not know it: never "completed"
    QUEUED = "queued"
    GRANTED = "granted"
    READY = "ready"
    RELEASING = "releasing"
    ENDED = "ended"


class Ending(StrEnum):
    """Why a cluster ended."""

    STOPPED = "stopped"  # by a person
    DONE = "done"  # its job succeeded
    IDLE = "idle"  # nobody used it for as long as it was to be kept
    TIME = "time"  # its time limit
    LEASE = "lease"  # every client went away and its GPUs did nothing
    FAILED = "failed"  # a node, Ray or the agent fell, or a gate timed out


@dataclass(frozen=True, slots=True)
class End:
    """The end record, written by the agent into the run folder; ``cause`` is one sentence for people."""

    ending: Ending
    cause: str
    ended_s: float
    evidence: str = ""
    joined_s: float | None = None
    gpus: int = 0
    busy_gpu_s: float | None = None  # integral of utilisation; None where it could not be read
    peak_mem_bytes: int | None = None
    used_gpus: int | None = None  # how many GPUs were ever over 5 %

    @property
    def held_gpu_s(self) -> float:
        return 0.0 if self.joined_s is None else max(0.0, self.ended_s - self.joined_s) * self.gpus

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        known = {key: value for key, value in data.items() if key in cls.__slots__}
        known["ending"] = Ending(known["ending"]) if known["ending"] in list(Ending) else Ending.FAILED
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at one cluster. ``reason`` is a sentence; ``evidence`` the scheduler's own words; times are Unix seconds."""

    word: Word
    attempt: int = 1
    native_id: str | None = None
    reason: str = ""
    evidence: str = ""
    hint: str = ""
    position: int | None = None  # 1 = next in the queue
    queue_length: int | None = None
    starts_at_s: float | None = None  # the scheduler's own estimate
    nodes_granted: int | None = None
    since_s: float | None = None  # of ABSENT: when it was first seen so
    end: End | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything but ``end``, which the status keeps."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "end"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = {key: value for key, value in data.items() if key in cls.__slots__ and key != "end"}
        known["word"] = Word(known["word"]) if known.get("word") in list(Word) else Word.UNKNOWN
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Status:
    """What we hold to be true of a cluster. Pure data, kept in its record."""

    state: State = State.SUBMITTED
    attempt: int = 1
    observation: Observation = field(default_factory=lambda: Observation(Word.UNKNOWN))
    end: End | None = None

    @property
    def ended(self) -> bool:
        return self.state is State.ENDED


_STATE_OF = {
    Word.QUEUED: State.QUEUED,
    Word.GRANTED: State.STARTING,
    Word.READY: State.READY,
    Word.RELEASING: State.ENDING,
    Word.ENDED: State.ENDED,
}
# A hub's state as an observation: what a hub says of itself is news like a scheduler's word.
WORD_OF_HUB: Mapping[str, Word] = {State.STARTING: Word.GRANTED, State.READY: Word.READY, State.ENDING: Word.RELEASING}
_NO_VIEW = frozenset({Word.UNKNOWN, Word.ABSENT})
_ORDER = {state: index for index, state in enumerate(State)}


def transition(status: Status, target: Target, seen: Observation) -> Status:
    """The next status. Pure, total and monotone per attempt: within one attempt a state never goes back.

    UNKNOWN and ABSENT change no state: a scheduler that is down, or has forgotten, ends nothing. A later attempt starts again
    at whatever it shows. An earlier attempt's observation is stale and ignored. With target DOWN a cluster that still
    lives is shown as ending. ENDED is final.
    """
    if status.ended or seen.attempt < status.attempt:
        return status
    shown = _STATE_OF.get(seen.word)
    if shown is None:
        return replace(status, observation=seen)
    if target is Target.DOWN and shown is not State.ENDED:
        shown = State.ENDING
    if seen.attempt == status.attempt and _ORDER[shown] < _ORDER[status.state]:
        # The scheduler's view of something the hub has told more of; it is news only when there was no view at all.
        return replace(status, observation=seen) if status.observation.word in _NO_VIEW else status
    return Status(state=shown, attempt=seen.attempt, observation=seen, end=seen.end)

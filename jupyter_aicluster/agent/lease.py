"""When a cluster gives its GPUs back by itself: pure rules over a few facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from jupyter_aicluster.state import Ending
from jupyter_aicluster.units import format_duration


class Why(StrEnum):
    """What a deadline is about; also the key of DEADLINE events."""

    TIME = "time"  # the time limit, from joined N/N
    KEEP = "keep"  # idle for as long as it was to be kept
    HOLD = "hold"  # a failed or interrupted cell's GPUs, kept for another try
    LEASE = "lease"  # no client, and GPUs that do nothing


ENDING = {Why.TIME: Ending.TIME, Why.KEEP: Ending.IDLE, Why.HOLD: Ending.IDLE, Why.LEASE: Ending.LEASE}


@dataclass(frozen=True, slots=True)
class Facts:
    """All times are of the hub's clock, in seconds; durations in seconds."""

    joined_s: float
    time_limit_s: float
    client_s: float  # when a client was last heard
    busy_s: float  # when a GPU was last over 5 %
    unreadable_s: float  # when a GPU last could not be read, which counts as work while a cell runs
    cell_active: bool
    quiet_s: float  # when the last cell ended, or joined N/N
    patience: Why  # KEEP or HOLD: what the wait after quiet_s is
    patience_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class Deadline:
    what: Why
    at_s: float


def deadlines(facts: Facts) -> tuple[Deadline, ...]:
    """Every deadline that is set, soonest first. A cell that computes is ended by its time limit only."""
    found = [Deadline(Why.TIME, facts.joined_s + facts.time_limit_s)]
    if facts.cell_active:
        found.append(Deadline(Why.LEASE, max(facts.client_s, facts.busy_s, facts.unreadable_s, facts.quiet_s) + facts.lease_s))
    else:
        found.append(Deadline(Why.LEASE, max(facts.client_s, facts.busy_s) + facts.lease_s))
        # A hold is for a person who thinks: it counts from the failure. Keeping counts from the last work of any kind.
        since = facts.quiet_s if facts.patience is Why.HOLD else max(facts.quiet_s, facts.busy_s)
        found.append(Deadline(facts.patience, since + facts.patience_s))
    return tuple(sorted(found, key=lambda deadline: deadline.at_s))


def cause(what: Why, facts: Facts) -> str:
    """One sentence for the end record."""
    return {
        Why.TIME: f"its time limit of {format_duration(facts.time_limit_s)} was reached",
        Why.KEEP: f"nothing ran on it for {format_duration(facts.patience_s)}",
        Why.HOLD: f"its failed cell was not run again within {format_duration(facts.patience_s)}",
        Why.LEASE: f"no notebook was there for {format_duration(facts.lease_s)} and its GPUs did nothing",
    }[what]

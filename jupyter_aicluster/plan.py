"""Plan: exactly what will be sent, and whether it will fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jupyter_aicluster.spec import ClusterSpec


class Fit(StrEnum):
    NOW = "now"
    WAITS = "waits"
    NEVER = "never"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one type in one partition, queue or machine. ``free`` is None where the backend cannot tell."""

    name: str
    total: int
    free: int | None
    gpu_type: str | None = None
    per_node: int | None = None
    simulated: bool = False
    waiting: int = 0  # GPUs asked for by requests ahead of a new one


@dataclass(frozen=True, slots=True)
class Inventory:
    pools: tuple[Pool, ...] = ()

    @property
    def total(self) -> int:
        return sum(pool.total for pool in self.pools)

    @property
    def free(self) -> int | None:
        free = [pool.free for pool in self.pools]
        return None if None in free else sum(count for count in free if count is not None)


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used from here; if not, ``reason`` says what is missing and ``hint`` the fix."""

    ok: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Guess:
    """Something the user did not say, what was chosen, and the flag that changes it."""

    text: str
    flag: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Options and body, from which the text that a person reads (and could paste) is rendered."""

    backend: str
    spec: ClusterSpec
    nodes: int
    gpus_per_node: int
    text: str
    fit: Fit
    because: str  # one sentence: why it fits, waits or never fits
    options: Mapping[str, Any] = field(default_factory=dict)
    guesses: tuple[Guess, ...] = ()
    skipped: tuple[str, ...] = ()  # routing flags this backend does not know, as typed
    simulated: bool = False

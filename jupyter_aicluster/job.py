"""What a cell may ask about its cluster: ``from jupyter_aicluster import job``.

``checkpoint_dir`` (Path): new for each cell run, the same in all its attempts; ``attempt`` counts from 1; ``rank``,
``world_size``, ``node_count``; ``device`` ("cuda:0" or "cpu", for torch). Read from ``AICLUSTER_*`` each time; outside a cluster they
are those of a single process, with ``checkpoints`` in the working directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

_REPORT_EVERY_S = 1.0
_reporter: Callable[[str], None] | None = None  # set by the driver
_reported_s = -_REPORT_EVERY_S

if TYPE_CHECKING:
    checkpoint_dir: Path
    attempt: int
    rank: int
    world_size: int
    node_count: int
    device: str


def preempted() -> bool:
    """Whether the scheduler has announced that it will take the GPUs away: write a checkpoint now."""
    notice = os.environ.get("AICLUSTER_NOTICE")
    return notice is not None and Path(notice).exists()


def report(**metrics: object) -> None:
    """Show numbers on the card (``report(step=1200, loss=0.31)``), at most once a second. Outside a cluster: nothing."""
    global _reported_s
    now = time.monotonic()
    if _reporter is not None and now - _reported_s >= _REPORT_EVERY_S:
        _reported_s = now
        _reporter(" · ".join(f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in metrics.items()))


def _number(name: str, otherwise: int) -> Callable[[], int]:
    return lambda: int(os.environ.get(f"AICLUSTER_{name}") or otherwise)


def _checkpoint_dir() -> Path:
    path = Path(os.environ.get("AICLUSTER_CHECKPOINT_DIR") or "checkpoints")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _device() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible or visible == "-1" or os.environ.get("AICLUSTER_SIMULATED"):
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK') or 0}"


_ANSWERS: dict[str, Callable[[], Any]] = {
    "checkpoint_dir": _checkpoint_dir,
    "attempt": _number("ATTEMPT", 1),
    "rank": _number("RANK", 0),
    "world_size": _number("WORLD_SIZE", 1),
    "node_count": _number("NODES", 1),
    "device": _device,
}


def __getattr__(name: str) -> Any:
    if name not in _ANSWERS:
        raise AttributeError(f"job has no {name!r}; it has {', '.join(_ANSWERS)}, preempted() and report()")
    return _ANSWERS[name]()


def __dir__() -> list[str]:
    return [*_ANSWERS, "preempted", "report"]

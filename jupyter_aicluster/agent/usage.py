"""How much of the GPUs was used: integrals over 1 Hz samples, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

BUSY_PERCENT = 5.0  # under this a GPU does nothing
_LONGEST_S = 5.0  # a sample speaks for at most so long


class Usage:
    """``busy_s``: when a GPU last worked; ``unreadable_s``: when one could not be read, and so cannot be called idle."""

    def __init__(self) -> None:
        self.busy_s = self.unreadable_s = 0.0
        self.peak_mem_bytes: int | None = None
        self._busy_gpu_s: float | None = None
        self._last_s: dict[int, float] = {}
        self._used: set[tuple[int, str]] = set()
        self._readable = False

    @property
    def busy_gpu_s(self) -> float | None:
        return self._busy_gpu_s

    @property
    def used_gpus(self) -> int | None:
        """GPUs that were ever over 5 %; None where none could be read."""
        return len(self._used) if self._readable else None

    def sample(self, node: int, samples: Iterable[Mapping[str, Any]], now_s: float, counting: bool) -> None:
        """Take one reading of a node's GPUs. ``counting``: the cluster is joined, so its time is accounted."""
        elapsed = min(_LONGEST_S, now_s - self._last_s.get(node, now_s))
        self._last_s[node] = now_s
        for one in samples:
            util, memory = one.get("util_percent"), one.get("mem_used_bytes")
            if memory is not None:
                self.peak_mem_bytes = max(self.peak_mem_bytes or 0, int(memory))
            if one.get("lost"):
                continue
            if util is None:
                self.unreadable_s = now_s
                continue
            if util >= BUSY_PERCENT:
                self.busy_s = now_s
            self._readable = True
            if counting:
                self._busy_gpu_s = (self._busy_gpu_s or 0.0) + elapsed * util / 100
                if util >= BUSY_PERCENT:
                    self._used.add((node, str(one.get("index"))))

"""How large values are, estimated without copying them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import islice
from types import ModuleType
from typing import Any

from jupyter_aicluster.errors import ShipError
from jupyter_aicluster.units import format_size

_MAX_OBJECTS = 20_000
_SAMPLE = 200  # elements looked at in a long container; the rest is taken to be like them


def measure(values: Mapping[str, Any]) -> dict[str, int]:
    """Name → bytes, cheaply: arrays and tensors count what they hold, long containers are sampled. What two names share counts once."""
    seen: set[int] = set()
    return {name: _size(value, seen, depth=0) for name, value in values.items()}


def ship_check(values: Mapping[str, Any], max_bytes: int) -> None:
    """Raises `ShipError` when the inputs together look larger than ``max_bytes``."""
    sizes = measure(values)
    total = sum(sizes.values())
    if total <= max_bytes:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    raise ShipError(
        f"{largest[0]} is about {format_size(sizes[largest[0]])}: the inputs of this cell may be {format_size(max_bytes)} together",
        evidence="\n".join(f"{name}  {format_size(sizes[name])}  {type(values[name]).__name__}" for name in largest),
        hint=f"read the data inside the cell, from storage the cluster can reach, or raise the limit: --max-ship {-(-total // 10**9)}G",
    )


def _size(value: Any, seen: set[int], depth: int) -> int:
    if id(value) in seen or len(seen) > _MAX_OBJECTS:
        return 0
    seen.add(id(value))
    held = _held(value)
    if held is not None:
        return held
    size = sys.getsizeof(value, 0)
    if depth > 8 or isinstance(value, (type, ModuleType)) or (callable(value) and not hasattr(value, "__dict__")):
        return size
    if isinstance(value, Mapping):
        return size + _sampled([*islice(value.keys(), _SAMPLE), *islice(value.values(), _SAMPLE)], 2 * len(value), seen, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return size + _sampled(list(islice(value, _SAMPLE)), len(value), seen, depth)
    return size + sum(_size(part, seen, depth + 1) for part in getattr(value, "__dict__", {}).values())


def _sampled(parts: list[Any], count: int, seen: set[int], depth: int) -> int:
    looked_at = sum(_size(part, seen, depth + 1) for part in parts)
    return looked_at * count // len(parts) if parts else 0


def _held(value: Any) -> int | None:
    """Bytes behind an array-like value; None for anything else."""
    if isinstance(value, (str, bytes, bytearray, int, float, complex, bool, type(None))):
        return sys.getsizeof(value)
    if str(type(value).__module__).partition(".")[0] == "pandas" and hasattr(value, "memory_usage"):
        usage = value.memory_usage(deep=False)
        return int(usage if isinstance(usage, int) else usage.sum())
    nbytes = getattr(type(value), "nbytes", None) and getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else None

"""Checksums of values, by which a change in place is noticed."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from pickle import PickleBuffer
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from jupyter_aicluster.pickling import NotebookPickler
from jupyter_aicluster.sizes import measure

_MAX_COMPARED_BYTES = 256_000_000  # larger values count as changed only when they were assigned
_NEVER_CHANGE = (str, bytes, int, float, complex, bool, type(None), type, range, ModuleType, FunctionType, BuiltinFunctionType)


def fingerprints(values: Mapping[str, Any]) -> dict[str, int | None]:
    """Name → checksum of its pickle; None where it is immutable, too large or cannot be pickled: only assignment counts then."""
    sizes = measure(values)
    return {
        name: None if isinstance(value, _NEVER_CHANGE) or sizes[name] > _MAX_COMPARED_BYTES else _fingerprint(value)
        for name, value in values.items()
    }


def _fingerprint(value: Any) -> int | None:
    total = 0

    def add(buffer: PickleBuffer) -> None:
        nonlocal total
        total = zlib.crc32(buffer.raw(), total)

    file = io.BytesIO()
    try:
        NotebookPickler(file, buffer_callback=add).dump(value)
    except Exception:  # noqa: BLE001 - boundary: pickling runs user code, and "cannot be compared" is an answer
        return None
    return zlib.crc32(file.getbuffer(), total)

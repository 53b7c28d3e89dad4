"""The session's ``__main__``, and which of its names a cell has assigned or changed."""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pickle import PickleBuffer
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from jupyter_aicluster.pickling import NotebookPickler
from jupyter_aicluster.sizes import measure

_MAX_COMPARED_BYTES = 256_000_000  # larger values count as changed only when they were assigned
_NEVER_CHANGE = (str, bytes, int, float, complex, bool, type(None), type, range, ModuleType, FunctionType, BuiltinFunctionType)


def fresh_main() -> ModuleType:
    """A new, empty ``__main__``, put in place: what cells define is found there by pickle, Ray and child processes."""
    module = ModuleType("__main__", "The cells of one session.")
    sys.modules["__main__"] = module
    return module


@dataclass(frozen=True, slots=True)
class Before:
    """What some names were before a cell ran. Holds the values, so that an id is not given to another object."""

    values: Mapping[str, Any]
    prints: Mapping[str, int | None]

    @classmethod
    def look(cls, names: Iterable[str], namespace: Mapping[str, Any]) -> Before:
        values = {name: namespace[name] for name in names if name in namespace}
        return cls(values, fingerprints(values))

    def changed(self, names: Iterable[str], namespace: Mapping[str, Any], assigned: Collection[str] = ()) -> dict[str, Any]:
        """The names among ``names`` that are new, hold another object or a changed one, or are in ``assigned``."""
        now = {name: namespace[name] for name in names if name in namespace}
        same = {name: value for name, value in now.items() if name not in assigned and self.values.get(name, now) is value}
        prints = fingerprints(same)
        return {name: value for name, value in now.items() if name not in same or prints[name] != self.prints[name]}


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

"""Whether a value is still as it was, and which values share parts: what decides that a name need not travel again."""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from jupyter_aicluster.pickling import NotebookPickler

_CONTAINERS = (list, dict, set, bytearray, deque, array)
_NEVER_SHARED = (type, tuple, frozenset, Enum, FunctionType, BuiltinFunctionType, ModuleType)
_ATOMS = (str, bytes, int, float, complex, bool, type(None), range, *_NEVER_SHARED[3:])
_CODE = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_name", "co_filename")
_MADE_BY_PYTHON = frozenset({"__dict__", "__weakref__", "_abc_impl", "__doc__", "__annotations__", "__module__"})


def fingerprint(value: Any, within: frozenset[type] = frozenset()) -> bytes | None:
    """Equal as long as the value is not changed, in this process; None where it cannot be pickled, and so not be compared.

    ``within``: classes whose digest this is part of.
    """
    sink = _Hash()
    try:
        _Looker(sink, lambda buffer: sink.write(buffer.raw()), within).dump(value)
    except Exception:  # noqa: BLE001 - boundary: pickling runs user code, and "cannot be compared" is an answer
        return None
    return sink.digest.digest()


def kin(seeds: Iterable[Any], values: Mapping[str, Any]) -> set[str]:
    """The names of ``values`` that share something changeable with ``seeds``, or with one that does (an optimizer and its model)."""
    looks = [_parts(value) for value in seeds]  # kept: an id counts only while its object lives
    shared = {key for look in looks for key in look}
    if not shared:
        return set()
    others = {name: look for name, value in values.items() if (look := _parts(value))}
    found: set[str] = set()
    while new := {name for name, look in others.items() if name not in found and not shared.isdisjoint(look)}:
        found |= new
        shared |= {key for name in new for key in others[name]}
    return found


def _parts(value: Any) -> dict[int, Any]:
    """What others could hold too and change: id → object."""
    if isinstance(value, _ATOMS) and type(value) is not FunctionType:
        return {}
    looker = _Looker(_Nowhere(), lambda buffer: None, frames_whole=True)
    with suppress(Exception):  # boundary, as in fingerprint; what was met until then is known
        looker.dump(value)
    met = {key: part for key, (_, part) in looker.memo.copy().items() if _changeable(part)}
    return met | looker.closed_over


def _changeable(part: Any) -> bool:
    kind = type(part)
    if isinstance(part, _NEVER_SHARED) or kind.__name__ == "cython_function_or_method":
        return False
    return isinstance(part, _CONTAINERS) or hasattr(part, "__dict__") or hasattr(kind, "__slots__") or hasattr(kind, "__array__")


class _Looker(NotebookPickler):
    """Its pickles are never loaded. What a class or a function is made of is told by digests, in which it does not matter
    whether two equal strings are one object: that changes when a class travels, and the class with it does not.

    ``frames_whole``: pandas objects share much that never changes, so nothing within them counts.
    """

    def __init__(self, sink: Any, on_buffer: Any, within: frozenset[type] = frozenset(), frames_whole: bool = False) -> None:
        super().__init__(sink, on_buffer)
        self.closed_over: dict[int, Any] = {}
        self._within, self._frames_whole = within, frames_whole

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is CodeType:
            return bytes, (_code_digest(obj),)
        if isinstance(obj, type) and obj.__module__ == "__main__":
            return bytes, (b"" if self._frames_whole else self._class_digest(obj),)
        if self._frames_whole and str(type(obj).__module__).partition(".")[0] == "pandas":
            return bytes, (b"",)
        return super().reducer_override(obj)

    def _class_digest(self, kind: type) -> bytes:
        digest = hashlib.sha256(repr((kind.__qualname__, [base.__qualname__ for base in kind.__bases__])).encode())
        if kind not in self._within:
            for name, value in sorted(vars(kind).items()):
                if name not in _MADE_BY_PYTHON:
                    part = getattr(value, "__func__", value)
                    digest.update(name.encode() + (fingerprint(part, self._within | {kind}) or b""))
        return digest.digest()

    def _reduce_function(self, function: FunctionType) -> tuple[Any, ...]:
        cells = function.__closure__ or ()
        self.closed_over |= {id(cell): cell for cell in cells}
        held = [cell.cell_contents for cell in cells if cell != CellType()]  # an empty one equals an empty one
        return bytes, (_code_digest(function.__code__),), [function.__defaults__, function.__kwdefaults__, function.__dict__, held]


def _code_digest(code: CodeType) -> bytes:
    """A new object each time: pickle must not find it twice."""
    consts = [_code_digest(part) if isinstance(part, CodeType) else _const(part) for part in code.co_consts]
    return hashlib.sha256(repr([consts, *(getattr(code, name) for name in _CODE)]).encode()).digest()


def _const(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


class _Hash:
    """A file that keeps only the digest of what is written."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)

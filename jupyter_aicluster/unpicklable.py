"""Why a value cannot be pickled: the innermost part that fails, and what to do about it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

from jupyter_aicluster.pickling import NotebookPickler

_MAX_DEPTH = 20
_MAX_PARTS = 10_000

_ADVICE = (  # first match wins; names of classes anywhere in the type's ancestry
    ({"IOBase", "_IOBase", "TextIOWrapper"}, "an open file", "pass its path and open it in the cell"),
    ({"generator", "async_generator", "coroutine"}, "a running generator", "turn it into a list first, or make it in the cell"),
    ({"lock", "RLock", "Condition", "Event", "Semaphore", "Thread", "_local"}, "a lock or thread", "make it in the cell"),
    ({"socket", "SSLSocket"}, "a network connection", "connect in the cell"),
    ({"Connection", "Cursor", "Engine", "Session"}, "a connection", "connect in the cell"),
    ({"Popen", "Process"}, "a process", "start it in the cell"),
    ({"ObjectRef", "ActorHandle"}, "a handle of Ray", "use ray.get in the cell"),
    ({"ProcessGroup"}, "a process group", "make it in the cell"),
)


def pickle_error(value: Any) -> Exception | None:
    """What pickling raises, or None. User code (``__reduce__``, ``__getstate__``) runs and may raise anything."""
    try:
        NotebookPickler(_Nowhere(), buffer_callback=lambda buffer: None).dump(value)
    except Exception as error:  # noqa: BLE001 - boundary: any exception only means "cannot travel"
        return error
    return None


def culprit(name: str, value: Any, error: Exception) -> tuple[str, Any, Exception]:
    """The innermost part that fails by itself: its path (``config["log"].handle``), the object and its error."""
    path = name
    for _ in range(_MAX_DEPTH):
        for step, part in _parts(value):
            inner = pickle_error(part)
            if inner is not None:
                path, value, error = path + step, part, inner
                break
        else:
            break
    return path, value, error


def advice(value: Any, error: Exception) -> tuple[str, str]:
    """(what the object is, what to do)."""
    ancestry = {kind.__name__ for kind in type(value).__mro__}
    for names, what, remedy in _ADVICE:
        if names & ancestry:
            return what, remedy
    text = str(error).splitlines()
    return f"{type_name(value)} ({text[0] if text else type(error).__name__})", "make it in the cell, or send the data it is made from"


def type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value with how one reaches them, at most a bounded number."""
    if isinstance(value, Mapping):
        for _, (key, part) in zip(range(_MAX_PARTS), value.items(), strict=False):
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value[:_MAX_PARTS]):
            yield f"[{index}]", part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield "{…}", part
    elif isinstance(value, FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # not assigned yet
                yield f" (its variable {variable})", cell.cell_contents
        for default in value.__defaults__ or ():
            yield " (a default argument)", default
    else:
        for attribute, part in list(getattr(value, "__dict__", {}).items())[:_MAX_PARTS]:
            yield f".{attribute}", part


class _Nowhere(io.BytesIO):
    """Forgets what is written to it."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes

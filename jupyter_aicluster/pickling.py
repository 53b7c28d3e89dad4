"""How objects of a notebook are pickled: cloudpickle's rules, except that notebook functions live in ``__main__`` on both sides.

cloudpickle gives every function it carries a private copy of the globals it reads. Here a function or method of
``__main__`` becomes one of the *other* side's ``__main__``: it sees the names there, ``global`` works, closures
keep sharing their variables, and its source text goes along.
"""

from __future__ import annotations

import functools
import importlib
import io
import linecache
import marshal
import pickle
import sys
from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import IO, Any

_MAX_SOURCE_CHARS = 1_000_000
_CLOUDPICKLES = ("ray.cloudpickle", "cloudpickle")


@functools.cache
def cloudpickle() -> ModuleType:
    """cloudpickle, or the copy that Ray carries where only that is installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return importlib.import_module("ray.cloudpickle")


class NotebookPickler(pickle.Pickler):
    """Pickles with protocol 5. ``sources`` collects file name → source text of the functions it met."""

    def __init__(self, file: IO[bytes], buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.sources: dict[str, str] = {}
        self._cloud = cloudpickle().Pickler(io.BytesIO(), protocol=5)  # only its rules are used
        self.dispatch_table = dict(self._cloud.dispatch_table)
        del self.dispatch_table[io.TextIOWrapper]  # cloudpickle would send what is left to read of an open file
        self._main = sys.modules["__main__"].__dict__
        self._cells: dict[int, _Cell] = {}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and obj.__globals__ is self._main:
            return self._reduce_function(obj)
        if type(obj) is CodeType:  # cloudpickle would forget its file name, and with it the source; both sides run the same Python
            return marshal.loads, (marshal.dumps(obj),)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.TypedStorage) and obj._untyped_storage.is_cuda:
            # A tensor in GPU memory travels as a copy in ordinary memory: the other side may have no GPU.
            return torch.TypedStorage(wrap_storage=obj._untyped_storage.cpu(), dtype=obj.dtype, _internal=True).__reduce__()
        return self._cloud.reducer_override(obj)

    def _reduce_function(self, function: FunctionType) -> tuple[Any, ...]:
        self._remember_source(function)
        cells = function.__closure__ or ()
        state = {
            "attributes": {name: getattr(function, name) for name in _ATTRIBUTES if hasattr(function, name)},
            "dict": function.__dict__,
            "contents": [_contents(cell) for cell in cells],
        }
        # Two phases: the function with empty cells first, then what the cells hold, which may be the function itself.
        made = (function.__code__, function.__name__, tuple(self._cells.setdefault(id(cell), _Cell(cell)) for cell in cells))
        return make_function, made, state, None, None, fill_function

    def _remember_source(self, function: FunctionType) -> None:
        filename = function.__code__.co_filename
        if filename not in self.sources:
            self.sources[filename] = "".join(linecache.getlines(filename, function.__globals__))[:_MAX_SOURCE_CHARS]


class NotebookUnpickler(pickle.Unpickler):
    """Unpickles what `NotebookPickler` wrote. With ``tolerant``, a class that does not exist here becomes a subclass of `Absent`."""

    def __init__(self, file: IO[bytes], buffers: list[bytearray], tolerant: bool) -> None:
        super().__init__(file, buffers=buffers)
        self._tolerant = tolerant

    def find_class(self, module: str, name: str) -> Any:
        for other in _CLOUDPICKLES:
            if module == other or module.startswith(other + "."):
                module = cloudpickle().__name__ + module.removeprefix(other)
                break
        if self._tolerant and name == "subimport" and module.endswith("cloudpickle"):
            return _module_or_absent
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            if not self._tolerant:
                raise
            return _absent(f"{module}.{name}", error)


class Absent:
    """Stands where an object was whose class cannot be imported here."""

    type_name = ""
    why = ""

    def __new__(cls, *args: object, **kwargs: object) -> Absent:
        return object.__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def append(self, item: object) -> None: ...

    def extend(self, items: object) -> None: ...

    def __repr__(self) -> str:
        return f"<{self.type_name}, which cannot be loaded here: {self.why}>"


def _absent(type_name: str, error: Exception) -> type[Absent]:
    return type(type_name.rpartition(".")[2], (Absent,), {"type_name": type_name, "why": str(error)})


def _module_or_absent(name: str) -> Any:
    """A cell may import what only the cluster has; its other names must still arrive."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        return _absent(f"module {name}", error)()


class _Cell:
    """A closure cell on its way: arrives empty, once for all functions that share it; each function's state fills it."""

    def __init__(self, cell: CellType) -> None:
        self.cell = cell  # keeps its id from being given to another cell

    def __reduce__(self) -> tuple[Any, ...]:
        return CellType, ()


_ATTRIBUTES = ("__defaults__", "__kwdefaults__", "__annotations__", "__doc__", "__qualname__", "__module__", "__type_params__")


def make_function(code: CodeType, name: str, cells: tuple[CellType, ...]) -> FunctionType:
    return FunctionType(code, sys.modules["__main__"].__dict__, name, None, cells)


def fill_function(function: FunctionType, state: Mapping[str, Any]) -> None:
    for name, value in state["attributes"].items():
        setattr(function, name, value)
    function.__dict__.update(state["dict"])
    for cell, contents in zip(function.__closure__ or (), state["contents"], strict=True):
        if contents:
            (cell.cell_contents,) = contents


def add_sources(sources: Mapping[str, str]) -> None:
    """Give linecache the text of files that do not exist here, so that tracebacks and `inspect` show it."""
    for filename, text in sources.items():
        if text and not linecache.getlines(filename):
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a variable not assigned yet
        return ()

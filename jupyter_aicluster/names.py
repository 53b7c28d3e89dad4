"""Which names a cell reads, assigns and changes: found in its text, without running it.

The caller gives plain Python (IPython's magics already transformed). What the text does not show (``exec``, ``globals()``)
is not found; what a cell may do on some path it is taken to do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType
from typing import Any

from jupyter_aicluster.cellwalk import AWAIT, CellWalk
from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.namebook import code_globals

_NOTEBOOK = frozenset(  # what IPython, or Python itself, puts into a notebook's namespace
    {"In", "Out", "_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh", "exit", "quit", "get_ipython", "display", "open"}
    | {"__builtins__", "__builtin__", "__name__", "__doc__", "__file__", "__loader__", "__spec__", "__package__", "__annotations__"}
)
_NUMBERED = re.compile(r"_i?\d+")
_MAX_PARTS = 1000


@dataclass(frozen=True, slots=True)
class CellNames:
    """Global names of one cell.

    ``reads``: may be read before the cell assigns them, in functions too. ``required``: are read at top level on every path
    before any assignment, so the cell fails without them. ``writes``: may be assigned, imported, defined or deleted.
    ``always``: are assigned on every path that ends normally. ``changes``: may be changed in place (attribute or item
    stores, method calls, arguments of calls): whether they were shows only afterwards. ``results``: those of ``writes`` and
    ``changes`` that a person expects to have afterwards; no imports, loop variables or handles of Ray.
    """

    reads: frozenset[str]
    required: frozenset[str]
    writes: frozenset[str]
    always: frozenset[str]
    changes: frozenset[str]
    results: frozenset[str]


def analyse(code: str) -> CellNames:
    """Raises `UsageError` with the line where the cell is not Python."""
    try:
        tree = ast.parse(code)
        compile(code, "<cell>", "exec", flags=AWAIT, dont_inherit=True)
    except SyntaxError as error:
        what = f"line {error.lineno} of the cell is not Python: {error.msg}"
        raise UsageError(what, evidence=(error.text or "").rstrip(), hint="mend that line and run the cell again") from error
    walk = CellWalk()
    walk.block(tree.body)
    book = walk.names
    seen = (book.reads, book.required, book.writes, book.surely, book.changes, {name for name in book.results if name[0] != "_"})
    return CellNames(*(frozenset(name for name in names if not of_the_shell(name)) for names in seen))


def inputs(code: str, namespace: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of ``namespace`` to send with a cell, sorted: what it may read, and what the functions and classes among those read."""
    wanted: set[str] = set()
    found = set(analyse(code).reads)
    while found:
        new = {name for name in found - wanted if name in namespace and not of_the_shell(name)}
        wanted |= new
        found = {read for name in new for read in globals_read(namespace[name])}
    return tuple(sorted(wanted))


def globals_read(value: object) -> frozenset[str]:
    """Names of ``__main__`` that notebook functions and classes within ``value`` read: in methods, nested functions, containers."""
    names: set[str] = set()
    seen: set[int] = set()
    todo: list[object] = [value]
    while todo and len(seen) < _MAX_PARTS:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, FunctionType) and part.__module__ == "__main__":
            reads, _ = code_globals(part.__code__)
            names |= reads
        todo += _parts(part)
    return frozenset(name for name in names if not of_the_shell(name))


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]  # an empty one equals an empty one
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *value.__dict__.values()]
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        return [value.__func__, getattr(value, "__self__", None)]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, type):
        return [*vars(value).values(), *value.__bases__] if value.__module__ == "__main__" else []
    if isinstance(value, dict):
        return islice(value.values(), _MAX_PARTS)
    if isinstance(value, (list, tuple, set, frozenset)):
        return islice(value, _MAX_PARTS)
    return [type(value), *getattr(value, "__dict__", {}).values()] if type(value).__module__ == "__main__" else []


def of_the_shell(name: str) -> bool:
    """Whether IPython, or Python itself, keeps that name."""
    return name in _NOTEBOOK or bool(_NUMBERED.fullmatch(name))

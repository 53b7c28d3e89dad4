"""What happens to the global names of a cell, noted in the order it happens."""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

_BUILTINS = frozenset(dir(builtins))


def code_globals(code: CodeType) -> tuple[set[str], set[str]]:
    """Names that a function's code, and the functions in it, load from and store to the global namespace."""
    loads, stores, own = set(), set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            loads.add(step.argval)
        elif step.opname == "STORE_NAME":  # a class body's own
            own.add(step.argval)
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            stores.add(step.argval)
    loads -= own
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_loads, inner_stores = code_globals(constant)
            loads |= inner_loads
            stores |= inner_stores
    return loads, stores


class NameBook:
    """Filled by a `CellWalk`. ``surely``: assigned on every path to here; ``results``: what a person expects to have afterwards."""

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.required: set[str] = set()
        self.writes: set[str] = set()
        self.changes: set[str] = set()
        self.surely: set[str] = set()
        self.star = False  # after `from x import *` any name may exist
        self._results: set[str] = set()
        self._tools: set[str] = set()  # modules and what comes from them, handles of Ray: nobody waits for those
        self._maybe = False  # whether the code looked at runs only on some paths
        self._locals: list[set[str]] = []  # of the comprehensions around the code looked at
        self._class: set[str] | None = None  # names of the class body that the code looked at stands in

    @property
    def results(self) -> set[str]:
        return self._results - self._tools

    def read(self, name: str, later: bool = False) -> None:
        """``later``: by a function, when it is called."""
        if name in self.surely or self.is_local(name) or (self._class is not None and name in self._class and not later):
            return
        if name in _BUILTINS and name not in self.writes:
            self.reads.add(name)  # a notebook may have a variable of that name
            return
        self.reads.add(name)
        if not (later or self._maybe or self.star or name in self.writes):
            self.required.add(name)

    def write(self, name: str) -> None:
        if self._class is not None:
            self._class.add(name)
        elif not self.is_local(name):
            self.writes.add(name)
            self.surely.add(name)
            self._results.add(name)
            self._tools.discard(name)

    def write_tool(self, name: str) -> None:
        """A module, something out of one, or a handle of Ray."""
        self.write(name)
        if self._class is None:
            self._tools.add(name)

    def delete(self, name: str) -> None:
        self.read(name)
        self.write(name)
        self.surely.discard(name)
        self._results.discard(name)

    def perhaps_write(self, names: set[str]) -> None:
        """By a function, should it be called."""
        self.writes |= names
        self._results |= names

    def change(self, node: ast.expr, meant: bool) -> None:
        """The name at the root of ``a.b[0].c`` may be changed in place; ``meant``: it is what the code is for."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        if isinstance(node, ast.Name) and not self.is_local(node.id):
            self.changes.add(node.id)
            if meant:
                self._results.add(node.id)

    def is_local(self, name: str) -> bool:
        return any(name in scope for scope in self._locals)

    def local(self, names: set[str]) -> None:
        """Names of the innermost comprehension."""
        self._locals[-1] |= names

    @contextmanager
    def comprehension(self) -> Iterator[None]:
        self._locals.append(set())
        with self.perhaps():
            yield
        self._locals.pop()

    @contextmanager
    def class_body(self) -> Iterator[None]:
        outer, self._class = self._class, set()
        yield
        self._class = outer

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """What is noted within happens only on some paths."""
        maybe, surely = self._maybe, set(self.surely)
        self._maybe = True
        yield
        self._maybe, self.surely = maybe, surely

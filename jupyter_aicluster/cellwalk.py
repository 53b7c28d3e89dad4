"""Follows a cell's text in the order it runs and notes what happens to global names."""

from __future__ import annotations

import ast
import builtins
import dis
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_BUILTINS = frozenset(dir(builtins))
_EXPANDED = re.compile(r"\{([^{}]+)\}|\$\{?([A-Za-z_]\w*)")  # {expression} and $name in magics and !commands
_MAGIC_OPTIONS = re.compile(r"^(?:\s*-{1,2}\w+(?:[ =]?\d+)?)+\s+")


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


class CellWalk(ast.NodeVisitor):
    """Follows top-level code in the order it runs."""

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.required: set[str] = set()
        self.writes: set[str] = set()
        self.changes: set[str] = set()
        self.surely: set[str] = set()  # assigned on every path to here
        self._maybe = False  # whether the code looked at runs only on some paths
        self._star = False  # after `from x import *` any name may exist
        self._locals: list[set[str]] = []  # of the comprehensions around the code looked at
        self._class: set[str] | None = None  # names of the class body that the code looked at stands in

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    # ---- names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id)
        elif isinstance(node.ctx, ast.Del):
            self._read(node.id)
            self._write(node.id)
            self.surely.discard(node.id)
        else:
            self._write(node.id)

    def _read(self, name: str, later: bool = False) -> None:
        if name in self.surely or self._is_local(name) or (self._class is not None and name in self._class and not later):
            return
        if name in _BUILTINS and name not in self.writes:
            self.reads.add(name)  # a notebook may have a variable of that name
            return
        self.reads.add(name)
        if not (later or self._maybe or self._star or name in self.writes):
            self.required.add(name)

    def _write(self, name: str) -> None:
        if self._class is not None:
            self._class.add(name)
        elif not self._is_local(name):
            self.writes.add(name)
            self.surely.add(name)

    def _change(self, node: ast.expr) -> None:
        """The name at the root of ``a.b[0].c``."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        if isinstance(node, ast.Name) and not self._is_local(node.id):
            self.changes.add(node.id)

    def _is_local(self, name: str) -> bool:
        return any(name in scope for scope in self._locals)

    # ---- statements

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._change(node)
        self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._change(node)
        self.visit(node.value)
        self.visit(node.slice)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self._star = True
            else:
                self._write(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches(node.body, node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._branches([ast.Assign([node.target], ast.Constant(None)), *node.body], [])
        self._branches(node.orelse, [])

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branches(node.body, [])
        self._branches(node.orelse, [])

    def visit_Try(self, node: ast.Try) -> None:
        self._try(node)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self._try(node)

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        handlers = [[*([ast.Expr(h.type)] if h.type else []), *h.body] for h in node.handlers]
        for handler in node.handlers:
            if handler.name:
                self.writes.add(handler.name)
        self._branches([*node.body, *node.orelse], *handlers)
        self.block(node.finalbody)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            names = [n for part in ast.walk(case.pattern) for n in (getattr(part, "name", None), getattr(part, "rest", None)) if n]
            with self._perhaps():
                for name in names:
                    self._write(name)
                self.visit(case.pattern)
                if case.guard:
                    self.visit(case.guard)
                self.block(case.body)

    def _branches(self, *bodies: list[ast.stmt]) -> None:
        """Exactly one of the bodies runs, nobody knows which."""
        ends = []
        for body in bodies:
            before = set(self.surely)
            with self._perhaps():
                self.block(body)
                ends.append(set(self.surely))
            self.surely = before
        self.surely = set.intersection(*ends)

    @contextmanager
    def _perhaps(self) -> Iterator[None]:
        maybe, surely = self._maybe, set(self.surely)
        self._maybe = True
        yield
        self._maybe, self.surely = maybe, surely

    # ---- functions and classes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in [*node.decorator_list, *node.args.defaults, *(default for default in node.args.kw_defaults if default)]:
            self.visit(part)
        self._write(node.name)
        bare = ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), "decorator_list": []}), node)
        self._later(ast.Module([bare], []), "exec")

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]:
            self.visit(part)
        self._later(ast.Expression(node), "eval")

    def _later(self, tree: ast.Module | ast.Expression, mode: str) -> None:
        """What a function does when it is called, which may be at once or never."""
        for constant in compile(tree, "<cell>", mode, flags=AWAIT, dont_inherit=True).co_consts:
            if isinstance(constant, CodeType):
                loads, stores = code_globals(constant)
                self.writes |= stores
                for name in loads:
                    self._read(name, later=True)
        for part in ast.walk(tree):  # globals that it changes in place; a local of the same name does no harm
            if isinstance(part, ast.Call):
                self._changed_by(part)
            elif isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
                self._change(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        self._write(node.name)
        outer, self._class = self._class, set()
        self.block(node.body)
        self._class = outer

    # ---- expressions

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)  # the rest may run never
        self._locals.append(set())
        with self._perhaps():
            for generator in node.generators:
                self.visit(generator.iter)
                self._locals[-1] |= {part.id for part in ast.walk(generator.target) if isinstance(part, ast.Name)}
                for condition in generator.ifs:
                    self.visit(condition)
            for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                self.visit(part)
        self._locals.pop()

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        with self._perhaps():
            for value in node.values[1:]:
                self.visit(value)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._branches([ast.Expr(node.body)], [ast.Expr(node.orelse)])

    def visit_Call(self, node: ast.Call) -> None:
        self._changed_by(node)
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "get_ipython()":
            texts = node.args[1:] if node.func.attr.startswith("run_") else node.args  # the first names the magic
            self._magic([part.value for part in texts if isinstance(part, ast.Constant) and isinstance(part.value, str)])

    def _changed_by(self, call: ast.Call) -> None:
        if isinstance(call.func, ast.Attribute):
            self._change(call.func)
        for part in [*call.args, *(keyword.value for keyword in call.keywords)]:
            self._change(part)

    def _magic(self, texts: list[str]) -> None:
        """Arguments of a magic or ``!command``: code (``%time fit(x)``), or text with ``{x}`` or ``$x`` in it."""
        with self._perhaps():
            for text in texts:
                try:
                    self.block(ast.parse(_MAGIC_OPTIONS.sub("", text)).body)
                except SyntaxError:
                    for expression, name in _EXPANDED.findall(text):
                        if name or expression.isidentifier():
                            self._read(name or expression)

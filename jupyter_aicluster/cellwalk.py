"""Follows a cell's text in the order it runs and notes what happens to global names."""

from __future__ import annotations

import ast
import re
from types import CodeType

from jupyter_aicluster.namebook import NameBook, code_globals

AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_EXPANDED = re.compile(r"\{([^{}]+)\}|\$\{?([A-Za-z_]\w*)")  # {expression} and $name in magics and !commands
_REMOTE = re.compile(r"(?:ray\.)?remote\b")  # decorators that make handles of Ray
_MAGIC_OPTIONS = re.compile(r"^(?:\s*-{1,2}\w+(?:[ =]?\d+)?)+\s+")


class CellWalk(ast.NodeVisitor):
    """Follows top-level code in the order it runs; ``names`` is what it found."""

    def __init__(self) -> None:
        self.names = NameBook()

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.read(node.id)
        elif isinstance(node.ctx, ast.Del):
            self.names.delete(node.id)
        else:
            self.names.write(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name) and _is_handle(node.value):
                self.names.write_tool(target.id)
            else:
                self.visit(target)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            self.names.change(node.value.func, meant=True)  # `model.fit(x)` by itself is there to change the model
        self.visit(node.value)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._tools_of(node.optional_vars)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.names.read(node.target.id)
        self.visit_NamedExpr(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr | ast.AugAssign) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.names.change(node, meant=True)
        self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.names.change(node, meant=True)
        self.visit(node.value)
        self.visit(node.slice)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.names.star = True
            else:
                self.names.write_tool(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches(node.body, node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        with self.names.perhaps():
            self._tools_of(node.target)
            self.block(node.body)
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
                self.names.writes.add(handler.name)
        self._branches([*node.body, *node.orelse], *handlers)
        self.block(node.finalbody)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            names = [n for part in ast.walk(case.pattern) for n in (getattr(part, "name", None), getattr(part, "rest", None)) if n]
            with self.names.perhaps():
                for name in names:
                    self.names.write(name)
                self.visit(case.pattern)
                if case.guard:
                    self.visit(case.guard)
                self.block(case.body)

    def _branches(self, *bodies: list[ast.stmt]) -> None:
        """Exactly one of the bodies runs, nobody knows which."""
        ends = []
        for body in bodies:
            before = set(self.names.surely)
            with self.names.perhaps():
                self.block(body)
                ends.append(set(self.names.surely))
            self.names.surely = before
        self.names.surely = set.intersection(*ends)

    def _tools_of(self, target: ast.expr) -> None:
        """Names bound by a loop or a with: there afterwards, but nobody waits for them."""
        self.visit(target)
        for part in ast.walk(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.names.write_tool(part.id)

    # ---- functions and classes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in [*node.decorator_list, *node.args.defaults, *(default for default in node.args.kw_defaults if default)]:
            self.visit(part)
        self._define(node)
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
                self.names.perhaps_write(stores)
                for name in loads:
                    self.names.read(name, later=True)
        for part in ast.walk(tree):  # globals that it changes in place; a local of the same name does no harm
            if isinstance(part, ast.Call):
                self._changed_by(part)
            elif isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
                self.names.change(part, meant=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        self._define(node)
        with self.names.class_body():
            self.block(node.body)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if any(_REMOTE.match(ast.unparse(decorator)) for decorator in node.decorator_list):
            self.names.write_tool(node.name)
        else:
            self.names.write(node.name)

    # ---- expressions

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)  # the rest may run never
        with self.names.comprehension():
            for generator in node.generators:
                self.visit(generator.iter)
                self.names.local({part.id for part in ast.walk(generator.target) if isinstance(part, ast.Name)})
                for condition in generator.ifs:
                    self.visit(condition)
            for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                self.visit(part)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        with self.names.perhaps():
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
            self.names.change(call.func, meant=False)
        for part in [*call.args, *(keyword.value for keyword in call.keywords)]:
            self.names.change(part, meant=False)

    def _magic(self, texts: list[str]) -> None:
        """Arguments of a magic or ``!command``: code (``%time fit(x)``), or text with ``{x}`` or ``$x`` in it."""
        with self.names.perhaps():
            for text in texts:
                try:
                    self.block(ast.parse(_MAGIC_OPTIONS.sub("", text)).body)
                except SyntaxError:
                    for expression, name in _EXPANDED.findall(text):
                        if name or expression.isidentifier():
                            self.names.read(name or expression)


def _is_handle(value: ast.expr) -> bool:
    """``f.remote(x)``, ``ray.put(x)`` or a list of such: it means something only where Ray runs."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr == "remote" or ast.unparse(value.func) == "ray.put"
    if isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return _is_handle(value.elt)
    return isinstance(value, (ast.List, ast.Tuple)) and bool(value.elts) and all(_is_handle(part) for part in value.elts)

"""Runs the code of cells in a namespace: with IPython where it is installed, else as plain Python."""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType, TracebackType
from typing import Any, Protocol

from jupyter_aicluster.agent.outputs import Outputs


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a cell ended. ``exception`` is the user's, None when it succeeded; ``traceback`` lines may have ANSI colours."""

    exception: BaseException | None = None
    traceback: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """`exit()` and `sys.exit(0)` end a cell without failing it."""
        return self.exception is not None and not (isinstance(self.exception, SystemExit) and self.exception.code in (None, 0))

    def error(self) -> dict[str, Any]:
        assert self.exception is not None
        name, text = type(self.exception).__name__, _said(self.exception)
        lines = self.traceback or [f"{name}: {text}"]
        if len(lines) > 2 * _MOST_LINES:
            lines = [*lines[:_MOST_LINES], f"... {len(lines) - 2 * _MOST_LINES} lines ...", *lines[-_MOST_LINES:]]
        return {"ename": name, "evalue": _short(text), "traceback": [_short(line) for line in lines]}


_MOST_LINES = 200  # at either end of a traceback
_MOST_CHARS = 20_000  # of one line, or of an exception's text: a report must reach the hub


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}... ({len(text)} characters)"


def _said(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception as error:  # noqa: BLE001 - boundary: __str__ is the user's code
        return f"<its text cannot be made: {type(error).__name__}>"


class Shell(Protocol):
    def run(self, code: str, filename: str, number: int) -> Outcome:
        """Run one cell in the calling thread. Raises nothing; ``number`` is the notebook's In[number]."""

    def plain(self, code: str) -> str:
        """The cell as plain Python: magics and ``!cmd`` become calls."""


def make_shell(main: ModuleType, outputs: Outputs) -> Shell:
    if find_spec("IPython") is None:
        return PlainShell(main, outputs)
    if find_spec("matplotlib_inline") is not None:
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    return _ipython(main, outputs)


def _ipython(main: ModuleType, outputs: Outputs) -> Shell:
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Publisher(DisplayPublisher):  # type: ignore[misc]
        def publish(
            self,
            data: Mapping[str, Any],
            metadata: Mapping[str, Any] | None = None,
            *args: object,
            transient: Mapping[str, Any] | None = None,
            update: bool = False,
            **kwargs: object,
        ) -> None:
            outputs.display(
                {
                    "output_type": "update_display_data" if update else "display_data",
                    "data": clean(data),
                    "metadata": metadata or {},
                    "transient": transient or {},
                }
            )

        def clear_output(self, wait: bool = False) -> None:
            outputs.display({"output_type": "clear_output", "wait": wait})

    class Hook(DisplayHook):  # type: ignore[misc]
        def write_output_prompt(self) -> None: ...

        def write_format_data(self, format_dict: Mapping[str, Any], md_dict: Mapping[str, Any] | None = None) -> None:
            outputs.display({"output_type": "execute_result", "data": clean(format_dict), "metadata": md_dict or {}})

        def log_output(self, format_dict: Mapping[str, Any]) -> None: ...

        def finish_displayhook(self) -> None:
            self._is_active = False

    class Compiler(CachingCompiler):  # type: ignore[misc]
        filename = "<cell>"

        def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
            return self.filename

    class CellShell(InteractiveShell):  # type: ignore[misc]
        traceback_lines: list[str]

        def init_create_namespaces(self, user_module: ModuleType | None = None, user_ns: dict[str, Any] | None = None) -> None:
            super().init_create_namespaces(main, main.__dict__)

        def showtraceback(self, *args: Any, **kwargs: Any) -> None:
            _cut_off_tail(sys.exc_info()[2])
            super().showtraceback(*args, **kwargs)

        def ask_exit(self) -> None:
            raise SystemExit(0)

        def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
            self.traceback_lines = list(stb)

        def _tee(self, channel: str) -> AbstractContextManager[None]:
            return nullcontext()  # a second copy of all output, in memory, for nobody

        def enable_gui(self, gui: str | None = None) -> None: ...

        def run(self, code: str, filename: str, number: int) -> Outcome:
            self.traceback_lines = []
            self.compile.filename = filename
            self.execution_count = number
            result = self.run_cell(code, store_history=True)
            exception = result.error_before_exec or result.error_in_exec
            return Outcome(exception, self.traceback_lines if exception is not None else [])

        def plain(self, code: str) -> str:
            return str(self.transform_cell(code))

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryAccessor.enabled = False
    config.InteractiveShell.autoindent = False
    config.InteractiveShell.cache_size = 0  # Out would keep every displayed tensor alive
    config.InteractiveShell.display_page = True
    shell: Shell = CellShell.instance(
        config=config,
        ipython_dir=os.environ.get("AICLUSTER_SCRATCH") or tempfile.mkdtemp(prefix="ipython-"),  # never one that others can write to
        display_pub_class=Publisher,
        displayhook_class=Hook,
        compiler_class=Compiler,
    )
    return shell


class PlainShell:
    """Without IPython: statements, top-level ``await``, the last expression shown by its rich or plain repr."""

    def __init__(self, main: ModuleType, outputs: Outputs) -> None:
        self._main = main
        self._outputs = outputs
        self._main.__dict__["display"] = self.display

    def plain(self, code: str) -> str:
        return code

    def display(self, *values: Any) -> None:
        for value in values:
            self._outputs.display({"output_type": "display_data", "data": mimebundle(value), "metadata": {}})

    def run(self, code: str, filename: str, number: int) -> Outcome:
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        try:
            tree = ast.parse(code, filename)
            last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None  # type: ignore[attr-defined]
            self._execute(compile(tree, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if last is not None:
                value = self._execute(compile(ast.Expression(last), filename, "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
                if value is not None:
                    self._outputs.display({"output_type": "execute_result", "data": mimebundle(value), "metadata": {}})
        except BaseException as error:  # noqa: BLE001 - boundary: whatever the user's code raises is the cell's outcome
            return Outcome(error, _user_traceback(error))
        return Outcome()

    def _execute(self, code: Any) -> Any:
        value = eval(code, self._main.__dict__)  # noqa: S307 - running the user's code is the purpose
        return asyncio.run(value) if code.co_flags & inspect.CO_COROUTINE else value


def mimebundle(value: Any) -> dict[str, Any]:
    """Like IPython's formatters, for the methods that classes define for themselves."""
    data = {"text/plain": repr(value)}
    for mime, method in (("text/html", "_repr_html_"), ("text/markdown", "_repr_markdown_"), ("image/svg+xml", "_repr_svg_")):
        made = getattr(value, method)() if hasattr(type(value), method) else None
        if made is not None:
            data[mime] = made
    return data


def clean(data: Mapping[str, Any]) -> dict[str, Any]:
    """A MIME bundle that JSON can carry: bytes as base64, as in Jupyter's messages."""
    from binascii import b2a_base64

    return {mime: b2a_base64(value, newline=False).decode() if isinstance(value, bytes) else value for mime, value in data.items()}


def _cut_off_tail(frames: TracebackType | None) -> None:
    """End a traceback at the last frame that is the user's: what this module or Ray does inside explains nothing to him."""
    ray = getattr(sys.modules.get("ray"), "__file__", None)
    inside = (__file__, *([os.path.join(os.path.dirname(ray), "")] if ray else []))  # noqa: PTH118, PTH120  # prefixes of texts
    last = None
    while frames is not None:
        if not frames.tb_frame.f_code.co_filename.startswith(inside):
            last = frames
        frames = frames.tb_next
    if last is not None:
        last.tb_next = None


def _user_traceback(error: BaseException) -> list[str]:
    """The traceback without this module's own frames at either end."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    _cut_off_tail(frames)
    return "".join(traceback.format_exception(type(error), error, frames)).splitlines()


def refuse_input(prompt: object = "") -> str:
    """In place of `input` and `getpass`: nobody can answer."""
    raise RuntimeError("a cell on a cluster cannot ask for input: read it in an ordinary cell and use the variable here")


def install_streams(stdout: Any, stderr: Any) -> None:
    """sys.stdout, sys.stderr and a refusing `input` for every cell."""
    import builtins
    import getpass

    sys.stdout = stdout
    sys.stderr = stderr
    builtins.input = refuse_input
    getpass.getpass = refuse_input  # type: ignore[assignment]

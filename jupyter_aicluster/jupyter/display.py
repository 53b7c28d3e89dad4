"""What a cell printed, displayed or raised on the cluster, shown as if it had happened here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeVar

from jupyter_aicluster.protocol import CellReport

_Error = TypeVar("_Error", bound=BaseException)


class Replay:
    """Puts OUTPUT events into the running cell. ``restore`` shows again what is ours after the user's code cleared the output."""

    def __init__(self, publisher: Any, restore: Callable[[], None] = lambda: None) -> None:
        self._publisher = publisher
        self._restore = restore
        self._written: TextIO | None = None

    def show(self, output: Mapping[str, Any]) -> None:
        """One nbformat-like output; a kind that only a newer driver knows is left out."""
        show = getattr(self, f"_show_{output.get('output_type')}", None)
        if show is not None:
            show(output)

    def _show_stream(self, output: Mapping[str, Any]) -> None:
        stream = sys.stderr if output.get("name") == "stderr" else sys.stdout
        if stream is not self._written:
            self.flush()  # the order of the two stays
        stream.write(_text(output["text"]))
        self._written = stream

    def flush(self) -> None:
        """Show what was written. Not done with every piece: many that came at once are one message to the front end."""
        if self._written is not None:
            self._written.flush()
            self._written = None

    def _show_display_data(self, output: Mapping[str, Any], update: bool = False) -> None:
        transient = output.get("transient") or {}
        self.flush()
        self._publisher.publish(
            data=dict(output["data"]), metadata=dict(output.get("metadata") or {}), transient=dict(transient), update=update
        )

    def _show_update_display_data(self, output: Mapping[str, Any]) -> None:
        self._show_display_data(output, update=True)

    _show_execute_result = _show_display_data  # without Out[n]: the value is not kept in this kernel

    def _show_clear_output(self, output: Mapping[str, Any]) -> None:
        self.flush()
        self._publisher.clear_output(wait=bool(output.get("wait")))
        self._restore()


class RemoteError(Exception):
    """The user's own exception, raised on the cluster. Its class is made to carry the name of the original one."""

    def __init__(self, message: str, lines: list[str]) -> None:
        super().__init__(message)
        self.lines = lines

    def _render_traceback_(self) -> list[str]:  # IPython asks for this
        return self.lines


def remote_error(report: CellReport) -> RemoteError:
    """The exception in a failed cell's report; IPython shows its remote traceback, lists and papermill see its name."""
    error = report.error or {}
    name, message = str(error.get("ename") or "Error"), str(error.get("evalue") or "")
    lines = [str(line) for line in error.get("traceback") or [f"{name}: {message}"]]
    kind = type(name if name.isidentifier() else "Error", (RemoteError,), {"__module__": "builtins", "__doc__": RemoteError.__doc__})
    made: RemoteError = kind(message, lines)
    return made


def short(error: _Error) -> _Error:
    """The same error, shown without the frames of this package: its text is all there is to know."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    setattr(error, "_render_traceback_", text.splitlines)  # noqa: B010  # not an attribute of the class: only IPython asks for it
    return error


def _text(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)

"""Everything a cell prints or displays, in order: Python's streams, the output of C code and child processes, and displays."""

from __future__ import annotations

import atexit
import codecs
import ctypes
import fcntl
import io
import json
import os
import re
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

MAX_TEXT_CHARS = 2_000_000
MAX_DISPLAY_CHARS = 32_000_000  # of one display; the hub takes 64 MB at a time
FLUSH_S = 0.05
_MAX_BUFFERED_CHARS = 1_000_000  # more than that waiting: the writer itself hands it on
_DRAIN_AGAIN_S = 0.0002  # no child process starts, writes and ends in less
_CURSOR_UP = re.compile(r"\x1b\[\d*A")
_CUT = "\n[This cell has printed 2 MB; the rest is only in the log: %gpujob logs]\n"

Emit = Callable[[str, Mapping[str, Any]], None]  # (cell id, nbformat-like output)


class Outputs:
    """Collects text, hands it on at most 20 times a second, and at once before any display.

    With `capture`, file descriptors 1 and 2 are pipes read here. What is written to them before a Python `print` also
    comes before it. Everything is copied to ``log`` (a descriptor); a cell's text beyond `MAX_TEXT_CHARS` is only there,
    where a line that is overwritten (a progress bar) counts once.
    """

    def __init__(self, emit: Emit, log: int) -> None:
        self._emit = emit
        self._log = log
        self._lock = threading.RLock()
        self._cell: str | None = None
        self._parts: list[tuple[str, str]] = []
        self._line = ""  # what the log does not have yet
        self._buffered = 0
        self._sent = 0
        self._open_line = 0  # characters of the unfinished last line, which a carriage return takes back
        self._pipes: dict[int, _Pipe] = {}
        self._poll = select.poll()  # under the lock; the thread that waits has its own
        self._drained_s = 0.0
        self._wake = os.pipe()
        self._pid = os.getpid()
        self._captured = False

    def capture(self) -> None:
        """Put pipes in place of descriptors 1 and 2 and start the thread that reads them and flushes."""
        self._capture()
        self._captured = True
        threading.Thread(target=self._run, name="outputs", daemon=True).start()
        atexit.register(self.flush)

    def _capture(self) -> None:
        """Said again: what an earlier cell has closed, unless something else has got that number since."""
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            if not self._captured or (name not in {pipe.name for pipe in self._pipes.values()} and not _is_open(descriptor)):
                pipe = _Pipe(descriptor, name)
                self._pipes[pipe.reading] = pipe
                self._poll.register(pipe.reading, select.POLLIN)

    def begin(self, cell_id: str) -> None:
        self.flush()
        with self._lock:
            if self._captured:
                self._capture()
            self._cell, self._sent, self._open_line = cell_id, 0, 0

    def end(self) -> None:
        """Everything the cell wrote until now is handed on; later text goes to the log only."""
        ctypes.CDLL(None).fflush(None)
        self.flush()
        with self._lock:
            self._cell = None

    def text(self, name: str, text: str) -> None:
        with self._lock:
            if time.monotonic() - self._drained_s > _DRAIN_AGAIN_S:
                self._drain()
            self._add(name, text)
            if self._buffered > _MAX_BUFFERED_CHARS:
                self._flush()

    def display(self, output: Mapping[str, Any]) -> None:
        """An output that is not a stream (display_data, execute_result, update_display_data, clear_output)."""
        if os.getpid() != self._pid:
            return  # a forked child's: it has no line to the hub
        with self._lock:
            self._drain()
            self._flush()
            if output.get("output_type") == "clear_output":
                self._sent = self._open_line = 0
            if self._cell is not None:
                self._emit(self._cell, _bounded(output))

    def flush(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._drain()
            self._flush()

    def _run(self) -> None:
        while True:
            select.select([self._wake[0], *self._pipes], [], [])
            time.sleep(FLUSH_S / 5)  # the first line soon, with what comes along with it
            self.flush()
            time.sleep(FLUSH_S * 4 / 5)

    def _drain(self) -> None:
        while self._pipes and (ready := self._poll.poll(0)):
            for descriptor, _ in ready:
                text = self._pipes[descriptor].read()
                if text is None:
                    self._poll.unregister(descriptor)
                    del self._pipes[descriptor]
                else:
                    self._add(self._pipes[descriptor].name, text)
            if self._buffered > _MAX_BUFFERED_CHARS:
                self._flush()
        self._drained_s = time.monotonic()

    def _add(self, name: str, text: str) -> None:
        if text:
            if not self._parts:
                os.write(self._wake[1], b".")
            self._parts.append((name, text))
            self._buffered += len(text)
            self._line += text
            if "\n" in text:
                self._keep()

    def _keep(self) -> None:
        """Every line at once: the last words of a process that is killed are wanted most."""
        data, self._line = memoryview(self._line.encode("utf-8", "replace")), ""
        with suppress(OSError):  # a full disk must not fail a print
            while data:
                data = data[os.write(self._log, data) :]

    def _flush(self) -> None:
        if not self._parts:
            return
        os.read(self._wake[0], 1)
        self._keep()
        parts, self._parts, self._buffered = self._parts, [], 0
        for name, text in _joined(parts):
            if self._cell is not None and (shown := self._within_limit(collapse(text))):
                self._emit(self._cell, {"output_type": "stream", "name": name, "text": shown})

    def _within_limit(self, text: str) -> str:
        if self._sent > MAX_TEXT_CHARS:
            return ""
        if text.startswith("\r"):
            self._sent -= self._open_line
            self._open_line = 0
        room = MAX_TEXT_CHARS - self._sent
        self._sent += len(text)
        _, newline, line = text.rpartition("\n")
        self._open_line = len(line) if newline else self._open_line + len(text)
        return text if len(text) <= room else text[:room] + _CUT


class Stream(io.TextIOBase):
    """sys.stdout or sys.stderr of the driver. In a forked child it writes to the descriptor, which the parent reads."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, outputs: Outputs, name: str) -> None:
        self.name = name
        self._outputs = outputs
        self._descriptor = 1 if name == "stdout" else 2
        self._pid = os.getpid()
        self.buffer = open(self._descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115 - a descriptor, for good

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if os.getpid() == self._pid:
            self._outputs.text(self.name, text)
        else:
            os.write(self._descriptor, text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Text is handed on within 50 ms in any case, so programs that flush after every line cost nothing more."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """Stays open: others print here."""


class _Pipe:
    """A pipe in place of one descriptor."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.name = name
        ends = os.pipe()
        self.reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)  # above ``descriptor``, even if that is free
        for end in ends:
            os.close(end)
        with suppress(OSError):  # C code that holds the GIL while it writes waits for ever once a pipe is full
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.dup2(writing, descriptor)
        os.close(writing)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str | None:
        """What is there; None once nobody can write any more: a cell has closed the descriptor."""
        data = os.read(self.reading, 1 << 16)
        return self._decoder.decode(data) if data else None


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _bounded(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """The display without what is too large to travel; a word on that in its text."""
    data = output.get("data", {})
    sizes = {mime: len(value) if isinstance(value, str) else len(json.dumps(value, default=str)) for mime, value in data.items()}
    if sum(sizes.values()) <= MAX_DISPLAY_CHARS:
        return output
    kept = {mime: value for mime, value in data.items() if sizes[mime] <= MAX_DISPLAY_CHARS // 4}
    dropped = ", ".join(f"{mime} of {size // 1_000_000} MB" for mime, size in sizes.items() if mime not in kept)
    text = str(data.get("text/plain", ""))[:2000]
    return {**output, "data": {**kept, "text/plain": f"{text}\n[too large to show: {dropped}]"}}


def collapse(text: str) -> str:
    """Without what carriage returns overwrite anyway; text that moves the cursor up is left alone."""
    if "\r" not in text or _CURSOR_UP.search(text):
        return text
    lines = []
    for line in text.split("\n"):
        body = line.rstrip("\r")
        lines.append(body[body.rfind("\r") :] + line[len(body) :] if "\r" in body else line)
    return "\n".join(lines)


def _joined(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of the same stream as one."""
    runs: list[tuple[str, list[str]]] = []
    for name, text in parts:
        if not runs or runs[-1][0] != name:
            runs.append((name, []))
        runs[-1][1].append(text)
    return [(name, "".join(texts)) for name, texts in runs]

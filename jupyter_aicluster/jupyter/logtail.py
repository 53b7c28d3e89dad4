"""The newest log lines of a cluster, labelled by who wrote them. Pure and bounded."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

LOG_LINES = 200
LOG_BYTES = 24_000
_LINE_CHARS = 2_000
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAYS_OWN = re.compile(r"\s*\[(state-dump|\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+)\].*")  # what its C++ parts log, and dump when one falls
_CONTROL = re.compile(r":(job_id|task_name|actor_name):(.*)")  # lines by which Ray's workers tell who writes what follows
RAY = "ray"  # who writes what `ray start` prints

_Key = tuple[int, str]  # node, stream


class LogTail:
    """Text of many streams in, lines out. Nobody sees Ray's control lines: they become labels."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=LOG_LINES)
        self._open: dict[_Key, str] = {}  # what stands behind the last line end
        self._writers: dict[_Key, str] = {}  # the task or actor that writes there now

    def take(self, node: int, stream: str, text: str) -> None:
        """The newest text of one stream; a carriage return overwrites its line, as in a terminal."""
        key = (node, stream)
        *whole, rest = (self._open.pop(key, "") + text).split("\n")
        for line in whole:
            if control := _CONTROL.fullmatch(line.rstrip("\r")):
                self._hear(key, control[1], control[2])
            elif not _RAYS_OWN.match(line):
                self._lines.append((node, self._label(key), _last_written(line)))
        if rest:
            self._open[key] = rest[-_LINE_CHARS:]

    def lines(self) -> list[dict[str, Any]]:
        """LogLine[] of model.ts, oldest first: at most `LOG_LINES` and `LOG_BYTES` together."""
        half = [
            (key[0], self._label(key), _last_written(text)) for key, text in self._open.items() if not _CONTROL.fullmatch(text.rstrip("\r"))
        ]
        shown: list[dict[str, Any]] = []
        room = LOG_BYTES
        for node, writer, text in reversed([*self._lines, *half][-LOG_LINES:]):
            room -= len(text.encode(errors="replace")) + len(writer.encode(errors="replace")) + 40
            if room < 0:
                break
            shown.append({"node": node, "writer": writer, "text": text})
        return shown[::-1]

    def clear(self) -> None:
        """Forget the lines; who writes where stays known."""
        self._lines.clear()
        self._open.clear()

    def forget(self, writer: str) -> None:
        """Drop the lines of ``driver``, ``ray`` ..."""
        self._lines = deque((line for line in self._lines if line[1] != writer), LOG_LINES)
        self._open = {key: text for key, text in self._open.items() if writer_of(key[1]) != writer}

    def _hear(self, key: _Key, what: str, name: str) -> None:
        if what != "job_id":
            self._writers[key] = name[:_LINE_CHARS]

    def _label(self, key: _Key) -> str:
        """``driver``, ``rank 3``, ``train 4711`` (a task or actor and its process), ``ray``: never a session's id."""
        writer, _, process = key[1].partition("-")
        if writer == "rank":
            return f"rank {process.partition('-')[0]}"
        return f"{self._writers.get(key, writer)} {process.partition('.')[0]}" if writer == "worker" else writer


def writer_of(stream: str) -> str:
    """``driver``, ``rank``, ``worker`` or ``ray``, out of the name of a stream."""
    return stream.partition("-")[0]


def _last_written(line: str) -> str:
    return _COLOURS.sub("", line.rstrip("\r").rpartition("\r")[2])[:_LINE_CHARS]

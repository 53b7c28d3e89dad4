"""The hub's journal: every event of one attempt, in order, on the hub's own disk; readers resume exactly."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jupyter_aicluster.events import Cursor, Event


class Journal:
    """Append-only NDJSON files, one per attempt. Memory: eight bytes an event, whatever is said in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._starts: dict[int, array[int]] = {}
        self._ends: dict[int, int] = {}
        for path in folder.glob("*.ndjson"):  # of a hub before this one: go on behind it
            self._index(int(path.stem), path)

    def path(self, attempt: int) -> Path:
        return self.folder / f"{attempt}.ndjson"

    def _index(self, attempt: int, path: Path) -> None:
        starts, end = array("Q"), 0
        with path.open("rb+") as file:
            for line in file:
                if not line.endswith(b"\n"):  # cut in half by that hub's death: it was never sent
                    file.truncate(end)
                    break
                starts.append(end)
                end += len(line)
        self._starts[attempt], self._ends[attempt] = starts, end

    def append(self, attempt: int, time_s: float, kind: str, data: dict[str, object]) -> Event:
        starts = self._starts.setdefault(attempt, array("Q"))
        event = Event(attempt, len(starts) + 1, time_s, kind, data)
        line = event.to_line()
        end = self._ends.get(attempt, 0)
        with self.path(attempt).open("ab", buffering=0) as file:
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)  # a part of a line would shift all that come after it
                raise
        starts.append(end)
        self._ends[attempt] = end + len(line)
        return event

    def after(self, cursor: Cursor, most_bytes: int = 1_000_000) -> Iterator[tuple[Cursor, bytes]]:
        """Whole lines after ``cursor``, oldest first, at most about ``most_bytes`` of them."""
        sent = 0
        for attempt in sorted(self._starts):
            if attempt < cursor.attempt:
                continue
            starts = self._starts[attempt]
            first = cursor.seq if attempt == cursor.attempt else 0
            if first >= len(starts):
                continue
            with self.path(attempt).open("rb") as file:
                file.seek(starts[first])
                for seq in range(first + 1, len(starts) + 1):
                    line = file.readline()
                    yield Cursor(attempt, seq), line
                    sent += len(line)
                    if sent >= most_bytes:
                        return


class Mirror:
    """Copies growing files to storage every second, in a thread of its own: a storage that hangs, hangs this thread alone."""

    def __init__(self, pairs: list[tuple[Path, Path]], period_s: float = 1.0) -> None:
        self._pairs = pairs
        self._period_s = period_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, timeout_s: float = 5.0) -> bool:
        """One last copy; False where storage did not take it in time."""
        self._done.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._done.wait(self._period_s):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        for source, target in self._pairs:
            for file in source.rglob("*"):
                if file.is_file():
                    with suppress(OSError):  # a full or missing storage must not stop the rest; the next second tries again
                        append_rest(file, target / file.relative_to(source))


def append_rest(source: Path, target: Path) -> None:
    """Make ``target`` as long as ``source``, which only grows."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with source.open("rb") as reading, target.open("ab") as writing:
        if (have := writing.tell()) < reading.seek(0, 2):
            reading.seek(have)
            shutil.copyfileobj(reading, writing)

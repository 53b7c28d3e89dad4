"""Log text: in files on its node, shipped to the hub by offset; nothing that reached the hub is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jupyter_aicluster.protocol import is_id

CHUNK_BYTES = 1_000_000


class Gap(ValueError):
    """A chunk that would leave a hole. ``have`` is where the hub stands; the node resumes there."""

    def __init__(self, have: int) -> None:
        super().__init__(have)
        self.have = have


class LogBook:
    """The hub's copy: ``folder/ATTEMPT/NODE/STREAM``. A flood costs disk, no memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, attempt: int, node: int, stream: str) -> Path:
        if not is_id(stream):
            raise ValueError(f"not a stream name: {stream!r}")
        return self.folder / str(attempt) / str(node) / stream

    def append(self, attempt: int, node: int, stream: str, at: int, data: bytes) -> tuple[int, bytes]:
        """Write what is new of ``data``, which begins at offset ``at``: (the size now, the new bytes). Raises `Gap`."""
        path = self.path(attempt, node, stream)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("ab") as file:
            have = file.tell()
            if at > have:
                raise Gap(have)
            new = data[have - at :]
            file.write(new)
            return have + len(new), new

    def read(self, attempt: int, node: int, stream: str, start: int = 0, most: int = CHUNK_BYTES) -> bytes:
        """Raw bytes from ``start``; empty past the end and for a stream nobody has written."""
        try:
            with self.path(attempt, node, stream).open("rb") as file:
                file.seek(start)
                return file.read(most)
        except FileNotFoundError:
            return b""

    def tail(self, attempt: int, node: int, stream: str, lines: int = 12) -> str:
        try:
            with self.path(attempt, node, stream).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - 8000))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def streams(self, attempt: int) -> Iterator[tuple[int, str, int]]:
        """(node, stream, size in bytes) of everything shipped in this attempt."""
        for path in sorted((self.folder / str(attempt)).glob("*/*")):
            yield int(path.parent.name), path.name, path.stat().st_size


@dataclass(slots=True)
class _Tail:
    path: Path
    sent: int = 0


class Tailer:
    """A node's side: follows files as they grow, each under a stream name. Holds no text."""

    def __init__(self) -> None:
        self._tails: dict[str, _Tail] = {}

    def follow(self, stream: str, path: Path) -> None:
        """Ship this file under this name from its beginning. Said again: no difference."""
        if is_id(stream):
            self._tails.setdefault(stream, _Tail(path))

    def forget(self) -> None:
        self._tails.clear()

    def pending(self) -> Iterator[tuple[str, int, bytes]]:
        """(stream, offset, at most `CHUNK_BYTES`) for every file that has grown beyond what the hub has."""
        for stream, tail in list(self._tails.items()):
            try:
                if tail.path.stat().st_size <= tail.sent:  # most of them, most of the time
                    continue
                with tail.path.open("rb") as file:
                    file.seek(tail.sent)
                    data = file.read(CHUNK_BYTES)
            except OSError:  # not there yet, or gone with its folder
                continue
            yield stream, tail.sent, data

    def acknowledge(self, stream: str, have: int) -> None:
        """The hub holds ``have`` bytes: go on from there, also backwards when a new hub has less."""
        if tail := self._tails.get(stream):
            tail.sent = have

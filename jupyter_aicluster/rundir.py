"""The run folder: one folder per cluster, written by the client, then by the agent; what must outlive a node lives here."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 whole or not at all (rename), creating nothing but the file."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink()
        raise


def copy_private(source: Path, target: Path) -> None:
    """``target`` with the content of ``source``, mode 0600: the same file where the disk allows it, else copied in pieces."""
    try:
        os.link(source, target)
        target.chmod(0o600)
    except OSError:
        write_private(target, b"")
        shutil.copyfile(source, target)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_private(path, json.dumps(value, indent=1).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None where there is none, or none that can be read yet."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class RunDir:
    """Names inside one run folder (mode 0700).

    The client writes ``submission.json``, ``secrets/``, ``bundle.zip`` and the first cell's ``files/``; the agent the rest.
    """

    path: Path

    @property
    def submission(self) -> Path:  # protocol.Submission
        return self.path / "submission.json"

    @property
    def bundle(self) -> Path:  # this package's .py files and the stand-ins, first on the cluster's PYTHONPATH
        return self.path / "bundle.zip"

    @property
    def hub(self) -> Path:  # {"host", "port", "pid", "attempt", "protocol"}: written when the hub listens
        return self.path / "hub.json"

    @property
    def end(self) -> Path:  # state.End
        return self.path / "end.json"

    @property
    def log(self) -> Path:  # what the supervisor and the hub print
        return self.path / "agent.log"

    @property
    def stop(self) -> Path:  # exists: somebody asked for the end while no hub was there to be told
        return self.path / "stop"

    @property
    def journal(self) -> Path:  # events.ndjson per attempt: journal/1.ndjson, ...
        return self.path / "journal"

    @property
    def logs(self) -> Path:  # copy of the hub's: logs/ATTEMPT/NODE/STREAM
        return self.path / "logs"

    @property
    def files(self) -> Path:  # inputs by sha256
        return self.path / "files"

    @property
    def values(self) -> Path:  # outputs by cell id
        return self.path / "values"

    @property
    def checkpoints(self) -> Path:  # one folder per cell run, the same in all its attempts
        return self.path / "checkpoints"

    @property
    def hub_key(self) -> Path:
        return self.path / "secrets" / "hub.key"

    @property
    def hub_cert(self) -> Path:
        return self.path / "secrets" / "hub.crt"

    @property
    def hub_token(self) -> Path:
        return self.path / "secrets" / "hub.token"

    @property
    def ray_token(self) -> Path:
        return self.path / "secrets" / "ray.token"

    def create(self) -> None:
        """Make the folders, each 0700 whatever the umask."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.path, self.hub_key.parent, self.journal, self.files, self.values, self.checkpoints):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log: evidence for a failure."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 16384))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

"""Records: what this user knows of every cluster, one private file each; the scheduler and the run folder know the rest."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jupyter_aicluster.errors import AIClusterError, BackendUnavailable, NotFound
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.rundir import RunDir, read_json, write_json
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Observation, State, Status, Target

KEEP_ENDED = 50  # records of ended clusters that stay, newest first


@dataclass(frozen=True, slots=True)
class Record:
    """One cluster as this user knows it. Times are Unix seconds."""

    handle: Handle
    spec: ClusterSpec
    created_s: float
    run: Path
    status: Status = field(default_factory=Status)
    target: Target = Target.UP
    simulated: bool = False
    nodes: int = 1
    owner: str = ""  # who made it: the kernel's session id

    def to_json(self) -> dict[str, Any]:
        status = self.status
        return {
            "backend": self.handle.backend,
            "uid": self.handle.uid,
            "name": self.handle.name,
            "spec": self.spec.to_json(),
            "created_s": self.created_s,
            "run": str(self.run),
            "state": str(status.state),
            "attempt": status.attempt,
            "observation": status.observation.to_json(),
            "end": status.end.to_json() if status.end else None,
            "target": str(self.target),
            "simulated": self.simulated,
            "nodes": self.nodes,
            "owner": self.owner,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        end = End.from_json(data["end"]) if data.get("end") else None
        seen = Observation.from_json(data.get("observation", {"word": "unknown"}))
        return cls(
            handle=Handle(data["backend"], data["uid"], data["name"]),
            spec=ClusterSpec.from_json(data["spec"]),
            created_s=data["created_s"],
            run=Path(data["run"]),
            status=Status(State(data["state"]), data.get("attempt", 1), seen, end),
            target=Target(data.get("target", "up")),
            simulated=data.get("simulated", False),
            nodes=data.get("nodes", 1),
            owner=data.get("owner", ""),
        )


class Store:
    """Records in ``home/records``; safe to use from several processes (each file is replaced whole)."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / "records"
        try:
            for folder in (home, self._folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise BackendUnavailable(
                f"records of clusters cannot be kept in {home}", evidence=str(error), hint="set JUPYTER_AICLUSTER_HOME to a folder of yours"
            ) from error

    def run(self, uid: str) -> RunDir:
        return RunDir(self.home / "runs" / uid)

    def put(self, record: Record) -> None:
        write_json(self._folder / f"{record.handle.uid}.json", record.to_json())

    def get(self, uid: str) -> Record | None:
        data = read_json(self._folder / f"{uid}.json")
        try:
            return Record.from_json(data) if data else None
        except (AIClusterError, AttributeError, KeyError, TypeError, ValueError):  # written by a version that meant something else by it
            return None

    def update(self, uid: str, change: Callable[[Status], Status], target: Target | None = None) -> Record | None:
        """Read, change, write if it changed, while no other process does; None where the record is gone."""
        with (self._folder / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed
            record = self.get(uid)
            if record is None:
                return None
            new = replace(record, status=change(record.status), target=target or record.target)
            if new.to_json() != record.to_json():
                self.put(new)
            return new

    def all(self) -> list[Record]:
        """Newest first."""
        found = [record for path in self._folder.glob("*.json") if (record := self.get(path.stem))]
        return sorted(found, key=lambda record: -record.created_s)

    def living(self) -> list[Record]:
        return [record for record in self.all() if not record.status.ended]

    def names(self) -> set[str]:
        return {record.handle.name for record in self.living()}

    def find(self, name: str) -> Record:
        """By name or uid: the living one, else the newest of that name. Raises `NotFound`."""
        same = [record for record in self.all() if name in (record.handle.name, record.handle.uid)]
        living = [record for record in same if not record.status.ended]
        if not same:
            here = ", ".join(sorted(self.names())) or "none"
            raise NotFound(f"no cluster called {name!r}", hint=f"yours that live: {here}. %gpujob list shows all")
        return (living or same)[0]

    def tidy(self) -> None:
        """Forget the oldest ended clusters, their run folders included."""
        ended = [record for record in self.all() if record.status.ended]
        for record in ended[KEEP_ENDED:]:
            (self._folder / f"{record.handle.uid}.json").unlink(missing_ok=True)
            shutil.rmtree(self.run(record.handle.uid).path, ignore_errors=True)  # not what a damaged record calls its folder

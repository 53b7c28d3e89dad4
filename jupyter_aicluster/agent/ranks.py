"""Ranks of ``--spmd`` cells: processes like drivers, one a GPU or a node, that begin, fail and end together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_aicluster.protocol import CellPhase, CellReport

STOP_S = 3.0  # how long ranks may take to stop after the first one has failed; then their processes are ended


@dataclass(slots=True)
class Rank:
    """``name`` is what its process is called among the drivers of its node."""

    name: str
    number: int
    node: int
    local: int
    ready: bool = False
    batch: int = 0  # the last batch of events taken from this process
    report: CellReport | None = None  # how the running cell ended here
    words: list[Mapping[str, Any]] = field(default_factory=list)  # its last outputs: shown only if it is the one that failed first

    def stream(self, start: int) -> str:
        """The log stream of its process."""
        return f"rank-{self.number}" if start == 1 else f"rank-{self.number}-{start}"


@dataclass(slots=True)
class RankGroup:
    """``start`` numbers the groups of a cluster: another number is other processes. ``first``: the rank that failed first."""

    session: str
    per: str
    start: int
    ranks: list[Rank]
    first: int | None = None
    stop_by_s: float | None = None

    @property
    def whole(self) -> bool:
        return all(rank.ready for rank in self.ranks)

    @property
    def over(self) -> bool:
        """Whether the running cell has ended in every rank."""
        return all(rank.report for rank in self.ranks)

    def outcome(self, known: CellReport, now_s: float) -> CellReport:
        """The run's report once it is `over`: the rank that failed first decides, else rank 0."""
        reports = [rank.report or CellReport(known.cell_id, CellPhase.INTERRUPTED) for rank in self.ranks]
        decisive, first = reports[self.first or 0], reports[0]
        done = decisive.phase == CellPhase.DONE
        gathered = tuple(dict.fromkeys(name for report in reports for name in report.gathered)) if done else ()
        return replace(
            known,
            phase=CellPhase(decisive.phase),
            ended_s=now_s,
            names=tuple(first.names),
            gathered=gathered,
            value_bytes=sum(report.value_bytes for report in reports),
            error=decisive.error and by_rank(decisive.error, self.first or 0, len(self.ranks)),
        )

    def rest(self) -> None:
        """Ready for the next cell."""
        self.first = self.stop_by_s = None
        for rank in self.ranks:
            rank.report = None
            rank.words.clear()


class Ranks:
    """The groups of one cluster, one a session at most."""

    def __init__(self, nodes: int, gpus_per_node: int) -> None:
        self.groups: dict[str, RankGroup] = {}
        self._nodes, self._gpus_per_node = nodes, gpus_per_node
        self._starts = 0

    def count(self, per: str) -> int:
        return self._nodes * self._local(per)

    def _local(self, per: str) -> int:
        return 1 if per == "node" else self._gpus_per_node

    def form(self, session: str, per: str) -> RankGroup:
        """The session's group, as many as wanted: the one that there is, else a new one."""
        known = self.groups.get(session)
        if known is None or known.per != per:
            self._starts += 1
            local = self._local(per)
            ranks = [Rank(f"{session}.rank-{k}", k, k // local, k % local) for k in range(self.count(per))]
            known = self.groups[session] = RankGroup(session, per, self._starts, ranks)
        return known

    def drop(self, session: str) -> None:
        self.groups.pop(session, None)

    def find(self, name: str) -> tuple[RankGroup, Rank] | None:
        """By the name of a process."""
        return next((found for found in self.all() if found[1].name == name), None)

    def all(self, node: int | None = None) -> Iterator[tuple[RankGroup, Rank]]:
        for group in tuple(self.groups.values()):
            for rank in group.ranks:
                if node in (None, rank.node):
                    yield group, rank

    def environment(self, group: RankGroup, rank: Rank, rendezvous: str, coordinator: str) -> dict[str, str]:
        """What torch.distributed, Accelerate and JAX look for, and `jupyter_aicluster.job`. The addresses are host:port on node 0."""
        local = self._local(group.per)
        host, _, port = rendezvous.rpartition(":")
        world = str(len(group.ranks))
        devices = str(rank.local) if group.per == "gpu" else ",".join(map(str, range(self._gpus_per_node)))
        return {
            "RANK": str(rank.number),
            "WORLD_SIZE": world,
            "LOCAL_RANK": str(rank.local),
            "LOCAL_WORLD_SIZE": str(local),
            "NODE_RANK": str(rank.node),
            "GROUP_RANK": str(rank.node),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            # jax.distributed.initialize takes these two from here; the number of processes and this one's it only takes as arguments.
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "JAX_LOCAL_DEVICE_IDS": devices,
            "AICLUSTER_RANK": str(rank.number),
            "AICLUSTER_WORLD_SIZE": world,
            "AICLUSTER_NODES": str(self._nodes),
        }


def by_rank(error: Mapping[str, Any], rank: int, world: int) -> dict[str, Any]:
    """An error that says which rank it is of."""
    said = str(error.get("evalue", ""))
    return {**error, "evalue": f"rank {rank}: {said}".rstrip(), "traceback": [f"In rank {rank} of {world}:", *error.get("traceback", ())]}

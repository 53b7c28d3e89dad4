"""ClusterSpec: what was asked. Frozen, validated, no I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from jupyter_aicluster.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """GPUs granted together, and how to get them.

    Needs (gpus, nodes, gpus_per_node, gpu_type, cpus_per_node, mem_per_node_bytes, time_s) are met or refused;
    routing (queue, account, qos, priority, image) that a backend does not know is skipped with a notice.
    None means "not said": the backend decides and its plan says what it decided.
    """

    gpus: int
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    cpus_per_node: int | None = None
    mem_per_node_bytes: int | None = None
    time_s: int | None = None
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    priority: int = 0
    image: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    pip: tuple[str, ...] = ()
    working_dir: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        for name in ("gpus", "nodes", "gpus_per_node", "cpus_per_node", "mem_per_node_bytes", "time_s"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SpecError(f"{name} must be a whole number, at least 1, not {value!r}", hint="for example --gpus 8")
        if self.nodes is not None and self.gpus % self.nodes:
            raise SpecError(
                f"{self.gpus} GPUs cannot be spread evenly over {self.nodes} nodes",
                hint=f"every node has the same number of GPUs: --gpus {-(-self.gpus // self.nodes) * self.nodes} -N {self.nodes}",
            )
        if self.gpus_per_node is not None and self.gpus % self.gpus_per_node:
            raise SpecError(
                f"{self.gpus} GPUs are not a multiple of {self.gpus_per_node} a node",
                hint=f"--gpus {-(-self.gpus // self.gpus_per_node) * self.gpus_per_node} --gpus-per-node {self.gpus_per_node}",
            )
        if self.nodes is not None and self.gpus_per_node is not None and self.nodes * self.gpus_per_node != self.gpus:
            raise SpecError(
                f"{self.nodes} nodes with {self.gpus_per_node} GPUs each are {self.nodes * self.gpus_per_node} GPUs, not {self.gpus}",
                hint="say two of --gpus, -N and --gpus-per-node; the third follows",
            )

    def shape(self, most_per_node: int) -> tuple[int, int]:
        """(nodes, GPUs on each) when a node has ``most_per_node`` GPUs: as few equal nodes as possible.

        Raises `SpecError` when no equal split exists.
        """
        if self.nodes is not None:
            return self.nodes, self.gpus // self.nodes
        if self.gpus_per_node is not None:
            return self.gpus // self.gpus_per_node, self.gpus_per_node
        for per_node in range(min(most_per_node, self.gpus), 0, -1):
            if self.gpus % per_node == 0:
                return self.gpus // per_node, per_node
        raise SpecError(f"{self.gpus} GPUs do not fit on nodes without GPUs", hint="choose another queue or backend")

    def satisfied_by(self, other: ClusterSpec) -> bool:
        """Whether a cluster that was asked for as ``other`` meets this requirement: a cell without -N runs on any shape."""
        same = ("nodes", "gpus_per_node", "gpu_type")
        return (
            self.gpus <= other.gpus
            and all(getattr(self, name) in (None, getattr(other, name)) for name in same)
            and (self.cpus_per_node or 0) <= (other.cpus_per_node or 0)
            and (self.mem_per_node_bytes or 0) <= (other.mem_per_node_bytes or 0)
            and (not self.env or self.env == other.env)
            and (not self.pip or self.pip == other.pip)
            and self.working_dir in (None, other.working_dir)
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Total over newer writers: unknown keys are ignored."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["env"] = tuple((key, value) for key, value in values.get("env", ()))
        values["pip"] = tuple(values.get("pip", ()))
        return cls(**values)

"""What clients, hub, node programs and drivers say to each other (HTTPS + JSON, version `VERSION`).

Client  → hub   GET /v1/cluster · POST /v1/lease · POST /v1/cells · GET /v1/cells/{id} · POST /v1/cells/{id}/interrupt
                GET /v1/values/{id} · POST /v1/files/{sha256} · GET /v1/events?since=A.S · GET /v1/logs/{node}/{stream}?from=
                POST /v1/keep · POST /v1/reset · POST /v1/stop
Node    → hub   POST /v1/nodes/{k}/beat → Orders · POST /v1/nodes/{k}/logs/{stream}?at=OFFSET
Driver  → hub   GET /v1/drivers/{session}/orders (NDJSON stream of Order) · POST /v1/drivers/{session}/events
                GET /v1/cells/{id}/request · GET /v1/files/{sha256} · PUT /v1/values/{id}
Ranks of ``--spmd`` cells speak to the hub as drivers do, each under a name of its own; a rank's part of a gathered name is
the value ``{cell id}.rank-K``.
Every request carries ``Authorization: Bearer TOKEN`` or, where a proxy consumes that, the token alone in `TOKEN_HEADER`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Self

from jupyter_aicluster.spec import ClusterSpec

VERSION = 1
TOKEN_HEADER = "X-AICluster-Authorization"  # noqa: S105  # a header's name
PROTOCOL_HEADER = "X-AICluster-Protocol"
OBSERVER_HEADER = "X-AICluster-Observer"  # on requests of somebody who only looks: they do not renew the lease

BEAT_S = 1.0  # a node program's heartbeat
SILENT_S = 15.0  # a node not heard for so long is lost (an 8 s cut survives)
FENCE_S = 20.0  # a node program that cannot reach its hub for so long ends its node's part
PULSE_S = 15.0  # the event stream says something at least this often

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def is_id(text: str) -> bool:
    """Whether ``text`` may be a session, cell or stream name: safe as a file name and in a URL path."""
    return bool(_ID.fullmatch(text)) and text not in (".", "..")


@dataclass(frozen=True, slots=True)
class Message:
    """JSON object ↔ frozen dataclass; unknown keys from a newer peer are ignored, missing ones take their default."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


class CellPhase(StrEnum):
    WAITING = "waiting"  # the hub has it; the cluster is not ready, or another cell of the session runs
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # the user's code raised
    INTERRUPTED = "interrupted"
    LOST = "lost"  # its driver or node went away

    @property
    def over(self) -> bool:
        return self not in (CellPhase.WAITING, CellPhase.RUNNING)


@dataclass(frozen=True, slots=True)
class CellRequest(Message):
    """One cell run. ``inputs`` is the sha256 of an uploaded payload, or None; ``after`` what happens when it ends.

    ``after_success_s``: how long to keep the GPUs when it succeeds (0 = give back at once); ``after_failure_s``: the
    hold when it raises or is interrupted. Both count from its end.
    """

    cell_id: str
    session: str
    code: str
    filename: str = "<cell>"
    inputs: str | None = None
    outputs: tuple[str, ...] = ()  # names to send back where the cell has assigned or changed them
    after_success_s: float = 0.0
    after_failure_s: float = 600.0
    label: str = ""  # "In [7]"
    max_output_bytes: int = 256_000_000
    spmd: str = ""  # "gpu" | "node": it runs once in each rank instead of in the session's driver
    gather: tuple[str, ...] = ()  # with ``spmd``: names that come back as lists by rank
    based: Mapping[str, str] = field(default_factory=dict)  # name the cell may use → cell run in which the client saw it travel last
    knows: bool = False  # the client has seen all cells of the session: a name there that it never saw travel is not its own
    ours: tuple[str, ...] = ()  # --in: sent whatever the driver has
    theirs: tuple[str, ...] | None = None  # --out: only these come back, and where both sides changed one the driver's stands
    gone: tuple[str, ...] = ()  # that the client had and has deleted

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        values: dict[str, Any] = {f.name: data[f.name] for f in fields(cls) if f.name in data}  # JSON's lists are tuples here
        tuples: dict[str, Any] = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return cls(**values | tuples)


@dataclass(frozen=True, slots=True)
class CellReport(Message):
    """Data of a CELL event: where one cell run stands. Times are Unix seconds of the hub."""

    cell_id: str
    phase: str
    attempt: int = 1
    label: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    names: tuple[str, ...] = ()  # names in its value blob, when over
    value_bytes: int = 0
    error: Mapping[str, Any] | None = None  # {"ename", "evalue", "traceback": [lines with ANSI colours]}
    cause: str = ""  # for LOST
    per: str = ""  # "gpu" | "node" where it runs in ranks
    ranks: int = 0  # how many
    gathered: tuple[str, ...] = ()  # names of which every rank has left its own
    admitted: bool = False  # its inputs are the driver's names now
    along: tuple[str, ...] = ()  # of ``names``, what is unchanged and came because it shares parts with others
    deleted: tuple[str, ...] = ()  # names that the cell has deleted
    lacks: tuple[str, ...] = ()  # names that the client took the driver to have
    stayed: tuple[str, ...] = ()  # results that are nowhere but in the driver: there was no room for them in the cluster's storage


@dataclass(frozen=True, slots=True)
class GpuInfo(Message):
    """One GPU of a node. ``index`` is what CUDA_VISIBLE_DEVICES calls it (a number or a UUID), opaque."""

    index: str
    name: str
    mem_total_bytes: int | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample(Message):
    """One reading. None: not readable here (MIG, [Not Supported]), never 0. ``lost``: the device no longer answers."""

    index: str
    util_percent: float | None = None
    mem_used_bytes: int | None = None
    power_w: float | None = None
    temp_c: float | None = None
    lost: bool = False


class RayState(StrEnum):
    ABSENT = "absent"
    STARTING = "starting"
    UP = "up"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """A node program's heartbeat. Level, not edge: it says how things are, so a lost one costs nothing."""

    node: int
    boot: str  # random per start of the node program
    attempt: int  # the attempt its Ray belongs to
    host: str = ""
    ray: str = RayState.ABSENT
    ray_error: str = ""  # sentence and log tail when FAILED
    ray_address: str = ""  # host:port of the GCS (node 0)
    dashboard: str = ""  # host:port (node 0)
    client_server: str = ""  # host:port for Ray Client (node 0)
    rendezvous: str = ""  # host:port for the ranks' MASTER_ADDR and MASTER_PORT (node 0)
    coordinator: str = ""  # host:port for JAX's coordinator in rank 0 (node 0)
    gpus: tuple[Mapping[str, Any], ...] = ()  # GpuInfo
    samples: tuple[Mapping[str, Any], ...] = ()  # GpuSample, newest
    drivers: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # session or rank → {"start", "state": "running"|"exited", "code"|"signal"}
    leaving: str = ""  # why it will go (SIGTERM, preemption); empty: it stays


@dataclass(frozen=True, slots=True)
class Orders(Message):
    """The wanted state, answered to every beat."""

    attempt: int
    ray: bool = False  # whether its raylet may run (staggered: the next one when the one before is up)
    ray_address: str = ""  # the GCS to join (nodes other than 0)
    drivers: Mapping[str, int] = field(default_factory=dict)  # session or rank → start number; another number = a fresh process
    ranks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of ``drivers``, those that are ranks → their environment
    stop: bool = False  # end everything and exit


class Order(StrEnum):
    """Lines of a driver's order stream: {"order", "cell_id", "n"}; ``n`` counts a cell's interrupts. The same may be said again."""

    RUN = "run"
    HOLD = "hold"  # take all GPUs in Ray's books: the session's ranks are going to use them
    INTERRUPT = "interrupt"
    PULSE = "pulse"


@dataclass(frozen=True, slots=True)
class Submission(Message):
    """submission.json: what the agent must know before anybody talks to it."""

    uid: str
    name: str
    backend: str
    spec: Mapping[str, Any]
    nodes: int
    gpus_per_node: int
    time_s: float
    keep_s: float = 1800.0  # idle that long → given back, unless a cell says otherwise
    lease_s: float = 600.0
    retries: int = 0
    connect_timeout_s: float = 120.0
    join_timeout_s: float = 180.0
    simulated: bool = False
    python: str = "python"  # interpreter of the node programs
    working_dir: str = "."
    session: str = "main"  # whose driver starts with the cluster
    cell: Mapping[str, Any] | None = None  # a CellRequest that runs as soon as N/N have joined
    protocol: int = VERSION

    NODE_ENV: ClassVar[str] = "AICLUSTER_NODE"
    UID_ENV: ClassVar[str] = "AICLUSTER_UID"  # marks every process of the cluster, for crash-safe clean-up

    @property
    def cluster_spec(self) -> ClusterSpec:
        return ClusterSpec.from_json(dict(self.spec))

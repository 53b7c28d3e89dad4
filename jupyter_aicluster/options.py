"""Options: what the client core is told by the configuration. Frozen; no file or environment is read here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_HOME = Path("~/.local/share/jupyter-aicluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Times in seconds. ``home`` holds the records and run folders; every node of a cluster must see it."""

    home: Path = field(default_factory=DEFAULT_HOME.expanduser)
    backend: str = "auto"
    time_s: float = 3600.0  # the limit of a job where neither flag nor partition says one
    up_time_s: float = 8 * 3600.0  # the same for `%gpujob up`
    keep_s: float = 1800.0
    hold_s: float = 600.0  # 0: a failed cell's GPUs go back at once
    lease_s: float = 600.0
    retries: int = 2  # of a job when a node falls; a held cluster, whose variables would be gone, has none unless asked for
    connect_timeout_s: float = 120.0
    join_timeout_s: float = 180.0
    max_ship_bytes: int = 2_000_000_000
    max_output_bytes: int = 256_000_000
    gpu_kind: str = "auto"  # local backend: auto | real | simulated
    simulated_gpus: int = 16
    display: str = "auto"  # auto | text | none: what a cell shows of its cluster

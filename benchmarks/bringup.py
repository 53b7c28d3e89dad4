"""Cluster bring-up against bare ``ray start`` in the same environment, and against bare with the same stand-in."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.bare import bare_ray
from benchmarks.figure import Figure
from jupyter_aicluster.bundle import make_bundle
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.options import Options

ROUNDS = 3
NODES, GPUS_PER_NODE = 2, 2


def ours(home: Path) -> tuple[float, float]:
    """(seconds from asking until a driver has connected and all have joined, seconds to give all back)."""
    options = Options(home=home, backend="local", gpu_kind="simulated")
    began = time.monotonic()
    cluster = Cluster(gpus=NODES * GPUS_PER_NODE, nodes=NODES, options=options)
    cluster.run(len, "")
    up = time.monotonic()
    cluster.stop()
    return up - began, time.monotonic() - up


def bare(python_path: str = "") -> float:
    with bare_ray(NODES, GPUS_PER_NODE, python_path) as (seconds, *_):
        return seconds


def measure() -> Iterator[Figure]:
    """Alternating, so that the machine's moods hit all three alike; medians."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = str(make_bundle(Path(folder, "bundles")))
        plain, with_stand_in, mine, down = [], [], [], []
        for _ in range(ROUNDS):
            plain.append(bare())
            up, back = ours(Path(folder, "home"))
            mine.append(up)
            down.append(back)
            with_stand_in.append(bare(bundle))
    detail = f"ours {median(mine):.1f} s, bare {median(plain):.1f} s, bare with the stand-in {median(with_stand_in):.1f} s"
    yield Figure("bring-up / bare ray start", median(mine) / median(plain), 0.6, "x", detail)
    yield Figure("bring-up / bare ray start with the stand-in", median(mine) / median(with_stand_in), 1.0, "x", detail)
    yield Figure("GPUs free after stop", max(down), 10.0, "s")

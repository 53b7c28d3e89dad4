"""Simulated GPUs on real Ray: who holds a slot is seen, and only that."""

from __future__ import annotations

import queue
import time

import pytest

from jupyter_aicluster.cluster import Change, Cluster
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.options import Options

pytestmark = pytest.mark.ray


def burn() -> str:
    """A Ray task on one GPU computes for six seconds; the slot it had."""
    import os

    import ray

    def compute() -> str:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            pass
        return os.environ["CUDA_VISIBLE_DEVICES"]

    slot: str = ray.get(ray.remote(num_gpus=1)(compute).remote())
    return slot


def test_the_load_of_a_slot_is_that_of_the_worker_that_holds_it(options: Options) -> None:
    seen: queue.SimpleQueue[dict[str, float]] = queue.SimpleQueue()

    def on_change(change: Change) -> None:
        if isinstance(change, Event) and change.kind == Kind.GPUS:
            seen.put({sample["index"]: sample["util_percent"] for sample in change.data["samples"]})

    with Cluster(gpus=2, options=options, wait_s=120) as cluster:
        cluster.watch(on_change)
        busy = cluster.run(burn)
        [node] = cluster.snapshot()["nodes"].values()
    assert {gpu["index"]: (gpu["name"], gpu["simulated"]) for gpu in node["gpus"]} == {
        "sim0": ("simulated GPU", True),
        "sim1": ("simulated GPU", True),
    }
    samples = [seen.get() for _ in range(seen.qsize())]
    assert max(sample[busy] for sample in samples) > 50
    [idle] = {"sim0", "sim1"} - {busy}
    assert max(sample[idle] for sample in samples[-3:]) < 50

"""Accounting of GPUs from samples."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_aicluster.agent.usage import Usage


def reading(util: float | None, mem: int | None = None, index: str = "0", lost: bool = False) -> dict[str, Any]:
    return {"index": index, "util_percent": util, "mem_used_bytes": mem, "lost": lost}


def test_utilisation_is_integrated_over_time_from_joined_on() -> None:
    usage = Usage()
    usage.sample(0, [reading(100.0), reading(50.0, index="1")], 100.0, counting=False)
    for second in range(101, 111):
        usage.sample(0, [reading(100.0), reading(50.0, index="1")], float(second), counting=True)
    assert usage.busy_gpu_s == pytest.approx(15.0)
    assert usage.used_gpus == 2


def test_the_same_reading_sent_twice_counts_once() -> None:
    usage = Usage()
    for now in (0.0, 1.0, 1.0, 1.0, 2.0):
        usage.sample(0, [reading(100.0)], now, counting=True)
    assert usage.busy_gpu_s == pytest.approx(2.0)


def test_a_sample_speaks_for_five_seconds_at_most() -> None:
    usage = Usage()
    usage.sample(0, [reading(100.0)], 0.0, counting=True)
    usage.sample(0, [reading(100.0)], 3600.0, counting=True)
    assert usage.busy_gpu_s == pytest.approx(5.0)


def test_nodes_are_accounted_apart_and_gpus_of_the_same_index_too() -> None:
    usage = Usage()
    for now in (0.0, 1.0):
        for node in (0, 1):
            usage.sample(node, [reading(100.0, mem=node + 5)], now, counting=True)
    assert usage.busy_gpu_s == pytest.approx(2.0)
    assert usage.used_gpus == 2
    assert usage.peak_mem_bytes == 6


def test_what_cannot_be_read_is_none_never_zero() -> None:
    usage = Usage()
    usage.sample(0, [reading(None), reading(None, mem=7, index="1")], 50.0, counting=True)
    assert (usage.busy_s, usage.unreadable_s) == (0.0, 50.0)
    assert usage.busy_gpu_s is None
    assert usage.used_gpus is None
    assert usage.peak_mem_bytes == 7


def test_idle_gpus_and_lost_ones_are_no_work() -> None:
    usage = Usage()
    usage.sample(0, [reading(4.9), reading(None, lost=True, index="1")], 50.0, counting=True)
    assert usage.busy_s == 0.0
    assert usage.used_gpus == 0
    usage.sample(0, [reading(5.0)], 51.0, counting=True)
    assert usage.busy_s == 51.0
    assert usage.used_gpus == 1

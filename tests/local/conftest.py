"""Real clusters on real Ray, one at a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_aicluster import procs
from jupyter_aicluster.agent.ports import ephemeral_range
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.clusters import clusters_of
from jupyter_aicluster.loop import background
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Pool
from jupyter_aicluster.procs import node_tmp
from jupyter_aicluster.store import Store


@pytest.fixture
def options(tmp_path: Path) -> Iterator[Options]:
    """Simulated GPUs and a home of their own; whatever the test left of its clusters is ended."""
    made = Options(home=tmp_path / "home", backend="local", gpu_kind="simulated", simulated_gpus=4)
    yield made
    for record in Store(made.home).all():
        procs.kill_marked(record.handle.uid)
        procs.remove_tmp(record.handle.uid)


def until(condition: Callable[[], object], within_s: float, what: str) -> float:
    """Seconds until the condition held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - began


def pid_of(uid: str, *words: str) -> int:
    """The one process of the cluster whose command line has these words."""
    lines = {process.pid: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    found = [pid for pid, line in lines.items() if set(words) <= set(line) and any(uid in word for word in line)]
    assert len(found) == 1, (words, found)
    return int(found[0])


def ports_of(uid: str) -> set[int]:
    """Ports of its own that the cluster's processes listen on; those the kernel draws may be anybody's a moment later."""
    found, drawn = set(), ephemeral_range()
    for pid in procs.marked(uid):
        try:
            listening = {c.laddr.port for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN}
            found |= {port for port in listening if port not in drawn}
        except psutil.NoSuchProcess:
            continue
    return found


def bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the dead linger in TIME_WAIT; listeners do not
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def assert_nothing_left(uid: str, ports: set[int], options: Options, within_s: float = 30.0) -> float:
    """No process, temp folder, port or slot of the cluster is left; seconds it took."""

    def gone() -> bool:
        [record] = [record for record in Cluster.list(options=options) if record.handle.uid == uid]
        free = [pool.free == pool.total for pool in _pools(options)]
        temp = list(node_tmp(uid, 0).parent.glob(f"aic-{uid}-*"))
        return not procs.marked(uid) and not temp and all(map(bindable, ports)) and all(free) and record.status.ended

    return until(gone, within_s, f"nothing of {uid} is left")


def _pools(options: Options) -> tuple[Pool, ...]:
    return background.run(clusters_of(options).backend("local").inventory()).pools

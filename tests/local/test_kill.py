"""kill -9 of each program in turn: within 30 s nothing of the cluster is left, and the list tells the truth."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.options import Options
from jupyter_aicluster.state import Ending
from tests.local.conftest import assert_nothing_left, pid_of, ports_of, until

pytestmark = pytest.mark.ray

VICTIMS = {
    "hub": (("hub",), "hub"),
    "node program": (("node", "1"), "node 1"),
    "supervisor": (("local",), "supervisor was killed"),
    "raylet's parent": (("start", "--block"), "Ray fell on node"),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_program_ends_the_cluster_and_leaves_nothing(victim: str, options: Options) -> None:
    words, cause = VICTIMS[victim]
    nodes = 2 if victim == "node program" else 1
    cluster = Cluster(gpus=2, nodes=nodes, options=options, wait_s=120)
    uid, ports = cluster.handle.uid, ports_of(cluster.handle.uid)
    assert ports
    os.kill(pid_of(uid, *words), signal.SIGKILL)
    assert_nothing_left(uid, ports, options)
    [record] = Cluster.list(options=options)
    assert record.status.end is not None
    assert record.status.end.ending is Ending.FAILED
    assert cause in record.status.end.cause


def test_all_programs_killed_at_once(options: Options) -> None:
    cluster = Cluster(gpus=2, options=options, wait_s=120)
    uid, ports = cluster.handle.uid, ports_of(cluster.handle.uid)
    for pid in [pid_of(uid, "local"), pid_of(uid, "hub"), pid_of(uid, "node")]:
        os.kill(pid, signal.SIGKILL)
    assert_nothing_left(uid, ports, options)


KERNEL = """
import sys
from pathlib import Path
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.options import Options
cluster = Cluster(gpus=2, options=Options(home=Path(sys.argv[1]), backend="local", gpu_kind="simulated", simulated_gpus=4, lease_s=3))
print(cluster.handle.uid, flush=True)
sys.stdin.read()
"""


def test_a_killed_kernel_loses_its_idle_gpus_with_the_lease(options: Options) -> None:
    command = [sys.executable, "-c", KERNEL, str(options.home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        uid = kernel.stdout.readline().strip()
        ports = ports_of(uid)
        assert ports
        kernel.kill()
    assert_nothing_left(uid, ports, replace(options, lease_s=3))
    [record] = Cluster.list(options=options)
    assert record.status.end is not None
    assert record.status.end.ending is Ending.LEASE


def test_a_living_kernel_keeps_its_lease(options: Options) -> None:
    """The other side of the test above: with somebody there, the same lease does not end it."""
    cluster = Cluster(gpus=1, options=replace(options, lease_s=2), wait_s=120)
    joined = cluster.snapshot()["joined_s"]
    until(lambda: cluster.snapshot()["deadlines"]["lease"] > joined + 6, 30, "the lease moves on")
    assert not cluster.status.ended
    assert cluster.stop()

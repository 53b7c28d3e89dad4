"""Giving back at awkward moments: while it joins, while a cell is on its way, while values are fetched."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.options import Options
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Ending
from tests.local.conftest import assert_nothing_left, ports_of, until

pytestmark = pytest.mark.ray


def ctrl_c_when(condition: Callable[[], object]) -> None:
    def press() -> None:
        while not condition():
            time.sleep(0.02)
        time.sleep(0.2)  # whoever waits for it is waiting by then
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def test_stop_while_it_joins(options: Options) -> None:
    cluster = Cluster.ask(ClusterSpec(gpus=2, nodes=2), options=options)
    until(RunDir(cluster.record.run).hub.exists, 30, "the hub listens")
    ports = ports_of(cluster.handle.uid)
    assert cluster.stop()
    end = cluster.status.end
    assert end is not None
    assert end.ending is Ending.STOPPED
    assert_nothing_left(cluster.handle.uid, ports, options)


def test_ctrl_c_while_it_joins_and_while_a_call_runs(options: Options) -> None:
    ctrl_c_when(lambda: any((record.run / "hub.json").exists() for record in Cluster.list(options=options)))
    with pytest.raises(KeyboardInterrupt):
        Cluster(gpus=2, options=options)
    [record] = Cluster.list(options=options)
    assert_nothing_left(record.handle.uid, set(), options)

    with Cluster(gpus=1, options=options, wait_s=120) as cluster:
        call = cluster.submit(time.sleep, 600)
        until(lambda: call._run.report and call._run.report.phase == "running", 60, "it runs")
        ctrl_c_when(lambda: True)
        with pytest.raises(KeyboardInterrupt):
            call.result()
        call.cancel()
        until(lambda: call.done, 10, "it was interrupted")
        assert cluster.run(len, b"x" * 50_000_000) == 50_000_000  # the driver lives
        ctrl_c_when(lambda: cluster._cells)
        with pytest.raises(KeyboardInterrupt):
            cluster.run(bytes, 100_000_000)
        assert cluster.run(sum, [1, 2]) == 3  # waits for what runs before it
    assert_nothing_left(cluster.handle.uid, set(), options)

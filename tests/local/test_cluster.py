"""The Python twin of the magic on real Ray, and two clusters of one user on one machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from jupyter_aicluster import procs
from jupyter_aicluster.cells import new_cell_id
from jupyter_aicluster.cluster import Change, Cluster
from jupyter_aicluster.errors import CellFailed, ClusterEnded, NeverFits
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import CellPhase, CellRequest
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import State
from tests.local.conftest import pid_of, ports_of, until

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = Options(home=tmp_path_factory.mktemp("home"), backend="local", gpu_kind="simulated", simulated_gpus=4)
    with Cluster(gpus=2, options=options, wait_s=120) as made:
        yield made


def cell(code: str) -> CellRequest:
    return CellRequest(new_cell_id(), "main", code, after_success_s=600.0, label="In [1]")


def test_run_submit_and_map(cluster: Cluster) -> None:
    here = os.getpid()

    def whereabouts(factor: int, *, offset: int = 0) -> tuple[int, int]:
        return os.getpid(), here * factor + offset

    pid, value = cluster.run(whereabouts, 2, offset=1)
    assert (pid != here, value) == (True, here * 2 + 1)
    calls = [cluster.submit(pow, 2, exponent) for exponent in (3, 4)]
    assert [call.result(60) for call in calls] == [8, 16]
    assert cluster.map(lambda x: x * factor, range(4), gpus=0.5) == [0, 10, 20, 30]


factor = 10


def test_an_exception_there_is_one_here_with_its_traceback(cluster: Cluster) -> None:
    with pytest.raises(CellFailed, match="ZeroDivisionError: division by zero") as caught:
        cluster.run(lambda: 1 / 0)
    assert "Traceback" in caught.value.evidence
    assert cluster.run(len, "still there") == 11


def test_ray_counts_what_was_granted_not_what_the_machine_has(cluster: Cluster) -> None:
    def counts() -> tuple[dict[str, float], str, str]:
        import ray

        return ray.cluster_resources(), ray.get_runtime_context().gcs_address, os.environ["RAY_ADDRESS"]

    resources, connected, told = cluster.run(counts)
    assert resources["GPU"] == 2
    assert connected == told == cluster.snapshot()["ray_address"]


def test_output_is_seen_while_the_cell_runs(cluster: Cluster, tmp_path: Path) -> None:
    """Not at its end: the cell ends only when its line was seen here. The same for a Ray task's line in its node's log."""
    go = tmp_path / "go"
    code = f"""
import os, time, ray
@ray.remote(num_cpus=0)
def task():
    print("from a task")
    while not os.path.exists({str(go)!r}): time.sleep(0.02)
print("from the cell")
ray.get(task.remote())
"""
    heard: list[str] = []

    def listen(change: Change) -> None:
        if isinstance(change, Event) and change.kind == Kind.LOG:
            heard.append(change.data["text"])

    stop = cluster.watch(listen)
    run = cluster.cell(cell(code))
    output = ""
    while "from the cell" not in output:
        event = run.events.get(timeout=60)
        if event.kind == Kind.OUTPUT:
            output += event.data["output"]["text"]
    until(lambda: any("from a task" in text for text in heard), 60, "the task's line")
    assert not run.over
    go.touch()
    assert run.wait(60)
    stop()


def test_an_interrupt_ends_the_cell_and_keeps_the_cluster(cluster: Cluster) -> None:
    run = cluster.cell(cell("kept = 1\nprint('on', flush=True)\nimport time\ntime.sleep(600)"))
    while run.events.get(timeout=60).kind != Kind.OUTPUT:
        pass
    cluster.interrupt(run.cell_id)
    assert run.wait(30)
    assert run.report is not None
    assert run.report.phase == CellPhase.INTERRUPTED
    again = cluster.cell(cell("print(kept)"))
    assert again.wait(30)
    assert again.report is not None
    assert again.report.phase == CellPhase.DONE


def test_a_driver_that_dies_takes_its_variables_not_the_cluster(cluster: Cluster) -> None:
    run = cluster.cell(cell("gone = 1\nimport os\nos._exit(3)"))
    assert run.wait(60)
    assert run.report is not None
    assert (run.report.phase, run.report.cause) == (CellPhase.LOST, "its driver ended (exit code 3)")
    assert cluster.run(lambda: "gone" in __import__("__main__").__dict__) is False


def test_a_second_cluster_has_its_own_ports_and_outlives_the_first(cluster: Cluster) -> None:
    """Both of one user on one machine: nothing is shared, and stopping one touches nothing of the other."""
    options = cluster._clusters.options
    second = Cluster(gpus=2, options=options, wait_s=120)
    assert second.name != cluster.name
    assert not ports_of(second.handle.uid) & ports_of(cluster.handle.uid)
    raylet = pid_of(cluster.handle.uid, "start", "--block")
    assert second.run(lambda: os.environ["RAY_ADDRESS"]) == second.snapshot()["ray_address"] != cluster.snapshot()["ray_address"]

    third = Cluster.ask(ClusterSpec(gpus=1), options=options)  # the machine's four are taken: it queues
    until(lambda: third.status.state is State.QUEUED, 30, "queued")
    assert third.status.observation.position == 1
    assert "0 of 4 are free" in third.status.observation.reason
    assert second.stop()
    third.wait_ready(120)
    assert third.stop()

    assert psutil.Process(raylet).is_running()
    assert cluster.run(len, "here") == 4
    assert not procs.marked(second.handle.uid)


def test_more_than_there_is_never_fits_and_nothing_is_recorded(cluster: Cluster) -> None:
    before = len(Cluster.list(options=cluster._clusters.options))
    with pytest.raises(NeverFits, match="24 GPUs, this machine has 4 simulated GPUs") as caught:
        Cluster(gpus=24, options=cluster._clusters.options)
    assert "Nothing was submitted" in str(caught.value)
    assert len(Cluster.list(options=cluster._clusters.options)) == before


def test_a_failed_cells_gpus_are_held_then_go_back_by_themselves(options: Options) -> None:
    request = CellRequest(new_cell_id(), "main", "1/0", after_success_s=0.0, after_failure_s=3.0)
    cluster = Cluster.ask(ClusterSpec(gpus=1), options=replace(options, lease_s=60), cell=request)
    run = cluster.run_of(request.cell_id)
    assert run.wait(120)
    failed = time.monotonic()
    assert "hold" in cluster.snapshot()["deadlines"]
    assert cluster.wait_ended(60)
    assert time.monotonic() - failed > 2
    end = cluster.status.end
    assert end is not None
    assert end.cause == "its failed cell was not run again within 3 s"
    with pytest.raises(ClusterEnded, match="has ended"):
        cluster.run(len, "")

"""``--spmd`` on real Ray: 4 ranks on 2 nodes, with real collectives between them (JAX on CPU, gloo)."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_aicluster import payload, procs
from jupyter_aicluster.cells import CellRun, new_cell_id
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.errors import CellFailed, UsageError
from jupyter_aicluster.events import Kind
from jupyter_aicluster.jupyter.magics import GpuMagics
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest
from jupyter_aicluster.spec import ClusterSpec
from tests.local.conftest import until

pytestmark = pytest.mark.ray

JOIN = """
import jax
from jupyter_aicluster import job
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(num_processes=job.world_size, process_id=job.rank)
"""
SUM = """
from jax.experimental import multihost_utils
import numpy as np
total = float(multihost_utils.process_allgather(np.float32([job.rank + 1.0])).sum())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = Options(home=tmp_path_factory.mktemp("home"), backend="local", gpu_kind="simulated", simulated_gpus=4)
    made = Cluster(gpus=4, nodes=2, options=options, env=(("FROM_THE_CELL", "yes"),))
    yield made
    made.stop()
    procs.kill_marked(made.handle.uid)
    procs.remove_tmp(made.handle.uid)


def start(cluster: Cluster, code: str, outputs: tuple[str, ...] = (), spmd: str = "gpu", **more: Any) -> CellRun:
    return cluster.cell(CellRequest(new_cell_id(), "main", code, outputs=outputs, spmd=spmd, after_success_s=600.0, **more))


def finish(run: CellRun, within_s: float = 90) -> CellReport:
    assert run.wait(within_s)
    assert run.report is not None
    return run.report


def values(cluster: Cluster, report: CellReport) -> Mapping[str, Any]:
    blob = io.BytesIO(cluster.value(report.cell_id).read_bytes()) if report.names else None
    return (payload.unpack(blob) if blob else {}) | cluster.gathered(report)


def printed(run: CellRun, name: str = "stdout") -> str:
    text = ""
    while not run.events.empty():
        event = run.events.get()
        if event.kind == Kind.OUTPUT and event.data["output"].get("name") == name:
            text += event.data["output"]["text"]
    return text


def test_every_rank_finds_the_environment_that_frameworks_expect(cluster: Cluster) -> None:
    run = start(
        cluster,
        "import os\nfrom jupyter_aicluster import job\nseen = dict(os.environ)\n"
        "me = (job.rank, job.world_size, job.node_count, job.device)\nprint('I am', job.rank)",
        gather=("seen", "me"),
    )
    report = finish(run)
    assert (report.phase, report.error, report.ranks, report.per) == (CellPhase.DONE, None, 4, "gpu")
    found = values(cluster, report)
    assert found["me"] == [(rank, 4, 2, "cpu") for rank in range(4)]
    seen = found["seen"]
    for name, expected in {
        "RANK": "0123",
        "WORLD_SIZE": "4444",
        "LOCAL_RANK": "0101",
        "LOCAL_WORLD_SIZE": "2222",
        "NODE_RANK": "0011",
        "GROUP_RANK": "0011",
        "JAX_LOCAL_DEVICE_IDS": "0101",
        "AICLUSTER_NODE": "0011",
    }.items():
        assert "".join(env[name] for env in seen) == expected, name
    for same in ("MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "OMP_NUM_THREADS", "AICLUSTER_CHECKPOINT_DIR"):
        assert len({env[same] for env in seen}) == 1, same
    assert all(env["FROM_THE_CELL"] == "yes" for env in seen)
    assert all(env["JAX_COORDINATOR_ADDRESS"] != f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}" for env in seen)
    assert seen[0]["CUDA_VISIBLE_DEVICES"] == seen[1]["CUDA_VISIBLE_DEVICES"] == "sim0,sim1"  # all the node's: LOCAL_RANK selects
    assert printed(run) == "I am 0\n"
    until(lambda: cluster.logs(1, "rank-3") == b"I am 3\n", 10, "the output of rank 3 in its log")
    assert {"rank-0", "rank-1"} <= {stream["stream"] for stream in cluster.streams() if stream["node"] == 0}


def test_real_collectives_and_ranks_that_keep_their_namespaces_and_process_groups(cluster: Cluster) -> None:
    assert finish(start(cluster, JOIN + "mine = job.rank * 10")).error is None
    report = finish(start(cluster, SUM + "mine += 1", ("total", "mine"), gather=("mine",)))
    assert report.error is None
    assert values(cluster, report) == {"total": 10.0, "mine": [1, 11, 21, 31]}


def test_a_rank_that_fails_stops_all_and_its_error_is_the_one_shown(cluster: Cluster) -> None:
    began = time.monotonic()
    code = (
        "import sys, time\nkept = job.rank\n"
        "if job.rank == 2:\n  print('loss is nan', file=sys.stderr)\n  raise ValueError('rank two')\n"
        "time.sleep(600)"
    )
    run = start(cluster, code, ("kept",))
    report = finish(run, 30)
    assert time.monotonic() - began < 20
    assert (report.phase, report.error["ename"], report.error["evalue"]) == ("failed", "ValueError", "rank 2: rank two")  # type: ignore[index]
    assert report.error is not None
    assert "In rank 2 of 4:" in report.error["traceback"][0]
    assert "loss is nan\n" in printed(run, "stderr")
    assert values(cluster, report) == {"kept": 0}
    again = finish(start(cluster, "kept", gather=("kept",)))  # they could be stopped, so they still have their variables
    assert values(cluster, again) == {"kept": [0, 1, 2, 3]}


def test_an_interrupt_reaches_all(cluster: Cluster) -> None:
    run = start(
        cluster, "import time\nprint('on', flush=True)\ntry:\n  time.sleep(600)\nexcept KeyboardInterrupt:\n  heard = True\n  raise"
    )
    until(lambda: run.report is not None and run.report.phase == CellPhase.RUNNING, 20, "it runs")
    time.sleep(0.5)
    cluster.interrupt(run.cell_id)
    assert finish(run, 20).phase == CellPhase.INTERRUPTED
    assert values(cluster, finish(start(cluster, "", gather=("heard",)))) == {"heard": [True] * 4}


def test_a_function_in_every_rank(cluster: Cluster) -> None:
    def where(base: int) -> tuple[int, int]:
        from jupyter_aicluster import job

        return base + job.rank, job.world_size

    assert cluster.spmd(where, 100) == [(100, 4), (101, 4), (102, 4), (103, 4)]

    def one_fails() -> None:
        from jupyter_aicluster import job

        assert job.rank != 3, "not three"

    with pytest.raises(CellFailed, match="AssertionError: rank 3: not three"):
        cluster.spmd(one_fails)


def test_ranks_hold_the_gpus_in_rays_books_until_reset(cluster: Cluster) -> None:
    def free() -> float:
        import ray

        return float(ray.available_resources().get("GPU", 0))

    assert cluster.run(free) == 0
    pids = [
        rank.pid
        for rank in psutil.process_iter(["cmdline"])
        if "--rank" in (rank.info["cmdline"] or []) and cluster.handle.uid in " ".join(rank.info["cmdline"])
    ]
    assert len(pids) == 4
    cluster.reset()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10, "the ranks are gone")
    until(lambda: cluster.run(free) == 4, 10, "the GPUs are free")
    report = finish(start(cluster, "missing = 'kept' not in globals()", gather=("missing",)))
    assert values(cluster, report) == {"missing": [True] * 4}


def notices(run: CellRun) -> list[str]:
    found = []
    while not run.events.empty():
        event = run.events.get()
        if event.kind == Kind.NOTICE:
            found.append(str(event.data["text"]))
    return found


def test_who_holds_the_gpus_is_said_where_something_waits_for_them(cluster: Cluster) -> None:
    heard: list[str] = []

    def hear() -> list[str]:
        heard.extend(notices(waiting))
        return heard

    ask = "import ray\n@ray.remote(num_gpus=1)\nclass Model: pass\nmodel = Model.remote()\nray.get(model.__ray_ready__.remote())"
    waiting = start(cluster, ask, spmd="")
    until(hear, 20, "the cell is told that the ranks hold them")
    assert heard == [
        "A task or actor of this cell waits for GPUs, and the ranks of --spmd cells hold all of them: %gpujob reset ends the ranks"
    ]
    cluster.interrupt(waiting.cell_id)
    assert finish(waiting, 20).phase == CellPhase.INTERRUPTED
    cluster.reset()
    assert finish(start(cluster, ask, spmd="")).error is None
    heard.clear()
    waiting = start(cluster, "")
    until(hear, 20, "the ranks are told that an actor holds one")
    assert heard == ["--spmd waits for its GPUs: 3 of 4 are free in Ray's books (actors alive: Model)"]
    cluster.interrupt(waiting.cell_id)
    assert finish(waiting, 20).phase == CellPhase.INTERRUPTED
    assert finish(start(cluster, "ray.kill(model)", spmd="")).error is None
    assert finish(start(cluster, "")).error is None


def test_a_killed_rank_stops_all_and_the_next_cell_has_fresh_ones(cluster: Cluster) -> None:
    run = start(
        cluster,
        "import os, signal, sys, time\nfrom jupyter_aicluster import job\n"
        "if job.rank == 1:\n  print('last words', file=sys.stderr)\n"
        "  time.sleep(0.5)\n  os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)",
    )
    report = finish(run, 30)
    assert (report.phase, report.cause) == (CellPhase.LOST, "rank 1 ended (killed by signal 9)")
    assert "last words" in printed(run, "stderr")
    again = finish(start(cluster, JOIN + SUM, ("total",)))
    assert (again.error, values(cluster, again)) == (None, {"total": 10.0})


def test_ranks_stuck_in_a_collective_are_ended_with_the_one_that_failed(cluster: Cluster) -> None:
    code = SUM.replace("total =", "if job.rank == 0: raise RuntimeError('no more')\ntotal =")
    began = time.monotonic()
    report = finish(start(cluster, code), 30)
    assert time.monotonic() - began < 20
    assert (report.phase, report.error["evalue"]) == ("failed", "rank 0: no more")  # type: ignore[index]
    again = finish(start(cluster, "x = 'total' in globals()", ("x",)))
    assert values(cluster, again) == {"x": False}


def test_once_per_node(cluster: Cluster) -> None:
    assert cluster.spmd(lambda: (os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["JAX_LOCAL_DEVICE_IDS"]), per="node") == [
        ("0", "1", "0,1"),
        ("1", "1", "0,1"),
    ]
    with pytest.raises(UsageError, match="per="):
        cluster.spmd(len, per="rack")


def test_a_notebook_cell_in_four_ranks_gives_its_gpus_back(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    magics = GpuMagics(shell)
    magics.notebook.options = lambda: options
    shell.register_magics(magics)
    shell.user_ns["base"] = [10]
    code = JOIN + SUM + "base.append(job.rank)\nloss = base[0] + job.rank"
    result = shell.run_cell(f"%%gpujob --gpus 4 -N 2 --spmd --gather loss\n{code}", store_history=True)
    shown = capsys.readouterr().out
    result.raise_error()
    assert (shell.user_ns["loss"], shell.user_ns["total"], shell.user_ns["base"]) == ([10, 11, 12, 13], 10.0, [10, 0])
    assert "once per GPU, 4 ranks" in shown
    assert "given back" in shown
    shell.history_manager.end_session()


def test_a_job_whose_rank_is_killed_starts_again_with_all_from_its_checkpoint(options: Options) -> None:
    code = JOIN + (
        "import os, signal\nfound = (job.checkpoint_dir / 'step').exists()\n"
        "if job.rank == 1 and job.attempt == 1:\n"
        "  (job.checkpoint_dir / 'step').write_text('1200')\n  os.kill(os.getpid(), signal.SIGKILL)\n" + SUM + "attempt = job.attempt"
    )
    request = CellRequest(new_cell_id(), "main", code, outputs=("total",), spmd="gpu", gather=("found", "attempt"))
    cluster = Cluster.ask(ClusterSpec(gpus=2, nodes=2), options=options, cell=request, retries=1)
    report = finish(cluster.run_of(request.cell_id), 150)
    assert (report.error, report.attempt) == (None, 2)
    assert values(cluster, report) == {"total": 3.0, "found": [True, True], "attempt": [2, 2]}
    assert cluster.wait_ended(30)

"""A gang falls and rises as one: all stop, all start again together, a job cell runs again from its stored inputs."""

from __future__ import annotations

import io
import os
import signal
import textwrap
from pathlib import Path

import pytest

from jupyter_aicluster import payload
from jupyter_aicluster.cells import new_cell_id
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import CellPhase, CellRequest
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Ending
from tests.local.conftest import assert_nothing_left, pid_of, ports_of, until

pytestmark = pytest.mark.ray

CODE = """
    import os, time, ray
    attempt = int(os.environ["AICLUSTER_ATTEMPT"])
    open(begun, "a").write(f"{attempt}\\n")
    deadline = time.monotonic() + 120
    while attempt == 1 and time.monotonic() < deadline:  # only the first attempt is to be killed
        time.sleep(0.1)
    answer = (attempt, given * 2, int(ray.cluster_resources()["GPU"]))
"""


@pytest.mark.parametrize("victim", [("node", "1"), ("start", "--block", "--head")], ids=["a node program", "the head's Ray"])
def test_a_job_runs_again_when_a_node_falls(victim: tuple[str, ...], options: Options, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    inputs = tmp_path / "inputs"
    with inputs.open("wb") as file:
        packed = payload.pack({"begun": str(begun), "given": 21}, file)
    request = CellRequest(
        cell_id=new_cell_id(), session="main", code=textwrap.dedent(CODE), inputs=packed.sha256, outputs=("answer",), after_success_s=0
    )
    cluster = Cluster.ask(ClusterSpec(gpus=2, nodes=2), options=options, cell=request, payload=inputs, retries=1)
    run = cluster.run_of(request.cell_id)
    until(begun.exists, 120, "the job begins")
    ports = ports_of(cluster.handle.uid)
    os.kill(pid_of(cluster.handle.uid, *victim), signal.SIGKILL)
    assert run.wait(120)
    assert run.report is not None
    assert run.report.phase == CellPhase.DONE, run.report
    assert begun.read_text().split() == ["1", "2"]
    with cluster.value(request.cell_id).open("rb") as file:
        assert payload.unpack(io.BytesIO(file.read()))["answer"] == (2, 42, 2)
    assert_nothing_left(cluster.handle.uid, ports, options)
    end = cluster.status.end
    assert end is not None
    assert end.ending is Ending.DONE

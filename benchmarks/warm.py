"""A warm cell's first output against Ray's own Jobs API on the same cluster."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.bare import bare_ray
from benchmarks.figure import Figure
from jupyter_aicluster.cells import new_cell_id
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.events import Kind
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import CellRequest

CELLS, JOBS = 20, 3
SUBMIT = """
import sys, time
from ray.job_submission import JobSubmissionClient
client = JobSubmissionClient(sys.argv[1])
client.list_jobs()
for _ in range(int(sys.argv[2])):
    began = time.monotonic()
    job = client.submit_job(entrypoint="echo hello")
    while "hello" not in client.get_job_logs(job):
        time.sleep(0.02)
    print(time.monotonic() - began, flush=True)
"""


def cell_s(cluster: Cluster) -> float:
    """Seconds from sending a cell until its first output is here."""
    began = time.monotonic()
    run = cluster.cell(CellRequest(new_cell_id(), "main", "print('hello')", after_success_s=600.0))
    while run.events.get(timeout=30).kind != Kind.OUTPUT:
        pass
    seen = time.monotonic() - began
    run.wait(30)
    return seen


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        with Cluster(gpus=1, options=Options(home=Path(folder), backend="local", gpu_kind="simulated")) as cluster:
            cell_s(cluster)
            cells = [cell_s(cluster) for _ in range(CELLS)]
        with bare_ray(1, 1) as (_, _, env, ports):
            command = [sys.executable, "-c", SUBMIT, f"http://127.0.0.1:{ports['dashboard']}", str(JOBS)]
            said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    jobs = [float(line) for line in said.split()]
    detail = f"cell {1000 * median(cells):.0f} ms, job {1000 * median(jobs):.0f} ms"
    yield Figure("warm cell → first output / Ray Jobs API", median(cells) / median(jobs), 1 / 20, "x", detail)

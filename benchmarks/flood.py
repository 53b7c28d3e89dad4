"""A million log lines from four tasks: what arrives here, how fast, against Ray's own ``log_to_driver``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.bare import bare_ray
from benchmarks.figure import Figure
from jupyter_aicluster import procs
from jupyter_aicluster.cells import new_cell_id
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import CellRequest

TASKS, LINES = 4, 250_000
BARE_LINES = 25_000  # Ray's way is too slow for a million: its rate is measured on fewer
STALLED_S = 20.0
CODE = """
import ray
@ray.remote(num_cpus=0, num_gpus=1)
def talk(task):
    for line in range({lines}):
        print(f"task {{task}} line {{line}} of a flood that must neither be lost nor doubled")
ray.get([talk.remote(task) for task in range({tasks})])
"""


def ours() -> tuple[float, int, int, int]:
    """(lines a second until all are at the hub, lost, repeated, bytes of memory that the hub grew by)."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(gpus=TASKS, options=Options(home=Path(folder), backend="local", gpu_kind="simulated")) as cluster,
    ):
        hub = next(psutil.Process(pid) for pid in procs.marked(cluster.handle.uid) if "hub" in psutil.Process(pid).cmdline())
        before = hub.memory_info().rss
        began = time.monotonic()
        code = CODE.format(lines=LINES, tasks=TASKS)
        run = cluster.cell(CellRequest(new_cell_id(), "main", code, after_success_s=600.0))
        expected = sum(
            len(f"task {task} line {line} of a flood that must neither be lost nor doubled\n")
            for task in range(TASKS)
            for line in range(LINES)
        )
        grown, newest, changed_s = 0, -1, began
        while newest < expected and time.monotonic() - changed_s < STALLED_S:
            size = sum(stream["size"] for stream in cluster.streams() if stream["stream"].endswith(".out"))
            if size != newest:
                newest, changed_s = size, time.monotonic()
            grown = max(grown, hub.memory_info().rss - before)
            time.sleep(0.1)
        seconds = changed_s - began
        run.wait(60)
        lines = []
        for stream in cluster.streams():
            if stream["stream"].endswith(".out"):
                text = b""
                while chunk := cluster.logs(stream["node"], stream["stream"], len(text)):
                    text += chunk
                lines += [line for line in text.splitlines() if line.startswith(b"task ")]
        return TASKS * LINES / seconds, TASKS * LINES - len(set(lines)), len(lines) - len(set(lines)), grown


def rays() -> float:
    """Lines a second that reach a driver's own output."""
    with bare_ray(1, TASKS, log_monitor=True) as (_, address, env, _):
        code = "import ray; ray.init(log_to_driver=True)\n" + CODE.format(lines=BARE_LINES, tasks=TASKS) + "\nimport time; time.sleep(600)"
        env = env | {"RAY_ADDRESS": address, "RAY_DEDUP_LOGS": "0"}
        process = subprocess.Popen([sys.executable, "-u", "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        seen, began, last = 0, 0.0, time.monotonic()
        try:
            while seen < TASKS * BARE_LINES and time.monotonic() - last < STALLED_S:
                if chunk := process.stdout.read(1 << 20):
                    last = time.monotonic()
                    began = began or last
                    seen += chunk.count(b"of a flood")
                else:
                    time.sleep(0.02)
        finally:
            process.kill()
            process.wait()
        return seen / max(last - began, 1e-9)


def measure() -> Iterator[Figure]:
    rate, lost, repeated, grown = ours()
    yield Figure("log lines lost of 1,000,000", lost, 0, "lines")
    yield Figure("log lines repeated of 1,000,000", repeated, 0, "lines")
    yield Figure("hub memory during the flood", grown / 1e6, 100.0, "MB")
    bare = rays()
    yield Figure("log_to_driver rate / ours", bare / rate, 1 / 5, "x", f"ours {rate:,.0f} lines/s, log_to_driver {bare:,.0f} lines/s")

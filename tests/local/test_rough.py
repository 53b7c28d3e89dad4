"""Real clusters where the surroundings are hostile: folder names, shadowing modules, leftovers in the environment, harsh cells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_aicluster import procs
from jupyter_aicluster.cells import new_cell_id
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.events import Kind
from jupyter_aicluster.options import Options
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest
from jupyter_aicluster.spec import ClusterSpec
from tests.local.conftest import assert_nothing_left, ports_of, until

pytestmark = pytest.mark.ray

STRANGE = 'a folder\'s "name"\nwith $(everything) ü'
LEFTOVERS = {
    "RAY_ADDRESS": "10.9.9.9:6379",
    "RAY_AUTH_TOKEN": "somebody-else",
    "RAY_NAMESPACE": "old",
    "RAY_TMPDIR": "/nowhere",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "AICLUSTER_UID": "0123456789ab",
}


def code(text: str, cluster: Cluster) -> CellReport:
    """Run a cell to its end."""
    run = cluster.cell(CellRequest(new_cell_id(), "main", text, after_success_s=600.0))
    assert run.wait(90)
    assert run.report is not None
    return run.report


def text_of(cluster: Cluster, report: CellReport) -> str:
    run = cluster.run_of(report.cell_id)
    events = [run.events.get_nowait() for _ in range(run.events.qsize())]
    return "".join(event.data["output"].get("text", "") for event in events if event.kind == Kind.OUTPUT)


def test_strange_folders_leftovers_and_harsh_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, home = tmp_path / STRANGE, tmp_path / "my home's"
    folder.mkdir()
    for name in ("json", "ray", "asyncio", "ssl", "aiohttp"):
        (folder / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    (folder / "mine.py").write_text("answer = 42")
    (folder / "startup.py").write_text("raise RuntimeError('startup')")
    for name, value in {**LEFTOVERS, "PYTHONSTARTUP": str(folder / "startup.py")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    options = Options(home=home, backend="local", gpu_kind="simulated", simulated_gpus=4)
    cluster = Cluster.ask(ClusterSpec(gpus=2, nodes=2), options=options)
    try:
        cluster.wait_ready(90)
        uid = cluster.handle.uid
        report = code(
            "import mine, os, ray\n"
            "@ray.remote(num_gpus=1)\ndef there(): import mine; return mine.answer, os.environ.get('RAY_NAMESPACE')\n"
            "print(mine.answer, ray.get([there.remote(), there.remote()]))",
            cluster,
        )
        assert report.phase == CellPhase.DONE, report
        assert text_of(cluster, report) == "42 [(42, None), (42, None)]\n"

        daemon = code("import subprocess\nprint(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)", cluster)
        pid = int(text_of(cluster, daemon))
        assert Path(f"/proc/{pid}").exists()
        lost = code("import os\nprint('last words', flush=True)\nos._exit(3)", cluster)
        assert (lost.phase, lost.cause) == (CellPhase.LOST, "its driver ended (exit code 3)")
        assert code("'x' not in globals()", cluster).phase == CellPhase.DONE  # by a fresh driver
        until(lambda: procs.start_time(pid) is None, 5, "what the old driver left running is gone")
        driver = next(str(stream["stream"]) for stream in cluster.streams() if str(stream["stream"]).startswith("driver"))
        assert b"last words" in cluster.logs(0, driver)

        tokens = [path.read_text() for path in (cluster.record.run / "secrets").glob("*.token")]
        for marked in procs.marked(uid):
            said = Path(f"/proc/{marked}/cmdline").read_bytes() + Path(f"/proc/{marked}/environ").read_bytes()
            assert not any(token.encode() in said for token in tokens)

        # Another process attaches afterwards and hears all of it again.
        script = (
            "import sys\nfrom pathlib import Path\n"
            "from jupyter_aicluster.cluster import Cluster\nfrom jupyter_aicluster.options import Options\n"
            "c = Cluster.attach(sys.argv[2], options=Options(home=Path(sys.argv[1])))\nrun = c.run_of(sys.argv[3])\nassert run.wait(20)\n"
            "print(*[e.data['output']['text'] for e in iter(lambda: run.events.get_nowait() if run.events.qsize() else None, None)"
            " if e.kind == 'output'], sep='', end='')"
        )
        command = [sys.executable, "-P", "-c", script, str(home), cluster.name, report.cell_id]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        again = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert again.stdout == "42 [(42, None), (42, None)]\n"

        ports = ports_of(uid)
        assert cluster.stop()
        assert_nothing_left(uid, ports, options)
        logs = "".join(path.read_text(errors="replace") for path in cluster.record.run.rglob("*") if path.suffix in (".log", ".ndjson"))
        assert not any(token in logs for token in tokens)
        for path in cluster.record.run.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
    finally:
        cluster.stop()
        until(lambda: not procs.marked(cluster.handle.uid), 30, "its processes ended")

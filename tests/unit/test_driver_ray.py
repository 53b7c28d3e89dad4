"""The driver on a real Ray."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.driver_hub import DriverHub

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverHub]:
    folder = tmp_path_factory.mktemp("ray")
    token = folder / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    env = os.environ | auth | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="aic-", dir="/tmp", ignore_cleanup_errors=True) as temp:  # AF_UNIX paths must be short
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port=0", "--num-cpus=2", "--num-gpus=4"]
        command += ["--include-dashboard=false", f"--temp-dir={temp}"]
        with (folder / "ray.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        try:
            address = _address(process, folder / "ray.log")
            with DriverHub(folder, auth | {"RAY_ADDRESS": address}, gpus=4) as running:
                running.wait(lambda: any(event["k"] == "driver" for event in running.events))
                yield running
        finally:
            process.terminate()
            process.wait(30)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """The GCS address, once the head node is up."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"--address='([\d.]+:\d+)'", log.read_text())
        if found and "Ray runtime started" in log.read_text():
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def test_cells_use_the_cluster_and_init_is_harmless(hub: DriverHub) -> None:
    assert {"k": "driver", "d": {"ready": True}} in hub.events
    cell = hub.cell(
        "import ray\nray.init(num_cpus=64)\nk = 7\ndef times(x): return x * k\n"
        "@ray.remote(num_gpus=1)\ndef task(x): return times(x)\n"
        "r = ray.get([task.remote(i) for i in range(3)])\nray.shutdown()\nr",
        None,
        ("r",),
    )
    assert (cell.phase, cell.values) == ("done", {"r": [0, 7, 14]})


def test_an_interrupt_ends_waiting_cancels_tasks_and_kills_new_actors(hub: DriverHub) -> None:
    cell_id = hub.start(
        "import ray, time\n"
        "@ray.remote\nclass Actor:\n  def spin(self): time.sleep(1000)\n  def ping(self): return 1\n"
        "@ray.remote\ndef spin(): time.sleep(1000)\n"
        "actor = Actor.remote()\nray.get(actor.ping.remote())\nspun, task = actor.spin.remote(), spin.remote()\nprint('go')\nray.get(task)"
    )
    hub.wait(lambda: bool(hub.outputs(cell_id)))
    hub.interrupt(cell_id)
    assert hub.finish(cell_id).phase == "interrupted"
    cell = hub.cell("for ref in (spun, task):\n  try: ray.get(ref, timeout=20)\n  except Exception as e: print(type(e).__name__)")
    assert len(cell.text().split()) == 2
    assert "GetTimeoutError" not in cell.text()


def test_a_traceback_ends_where_the_user_called_ray(hub: DriverHub) -> None:
    failed = hub.cell("import ray\n@ray.remote\ndef task(): return 1/0\nray.get(task.remote())")
    text = re.sub(r"\x1b\[[0-9;]*m", "", failed.traceback)
    assert "ray.get(task.remote())" in text
    assert "auto_init_hook" not in text
    assert "ZeroDivisionError" in failed.report["error"]["evalue"]

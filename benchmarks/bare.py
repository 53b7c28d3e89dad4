"""A Ray cluster as one would start it by hand: ``ray start`` on two "nodes" of this machine, then ``ray.init``."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_aicluster.agent.ports import PortBlock, claim_block
from jupyter_aicluster.agent.raystart import STARTED, RayPlan, command

INIT = "import os, ray; ray.init(address=os.environ['RAY_ADDRESS'], log_to_driver=False); print(ray.cluster_resources(), flush=True)"


def _command(ray: str, plan: RayPlan, ports: PortBlock, log_monitor: bool) -> list[str]:
    return [word for word in command(ray, plan, ports) if not (log_monitor and word.startswith("--include-log-monitor"))]


@contextmanager
def bare_ray(
    nodes: int, gpus_per_node: int, python_path: str = "", log_monitor: bool = False
) -> Iterator[tuple[float, str, dict[str, str], PortBlock]]:
    """Started with token auth, one raylet after another: (seconds until a driver has connected, address, env, ports)."""
    with tempfile.TemporaryDirectory(prefix="bare-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": python_path,
        }
        ray = str(Path(sys.executable).with_name("ray"))
        processes: list[subprocess.Popen[bytes]] = []
        blocks = [claim_block() for _ in range(nodes)]
        try:
            began = time.monotonic()
            address = f"127.0.0.1:{blocks[0]['gcs']}"
            for node, ports in enumerate(blocks):
                plan = RayPlan(
                    node=node,
                    ip="127.0.0.1",
                    temp_dir=Path(folder, str(node)),
                    cpus=2,
                    gpus=gpus_per_node,
                    object_store_bytes=100_000_000,
                    memory_bytes=2_000_000_000,
                    gcs_address=address if node else None,
                    custom_resources={},
                )
                log = Path(folder, f"{node}.log")
                with log.open("wb") as output:
                    processes.append(
                        subprocess.Popen(
                            _command(ray, plan, ports, log_monitor), env=env, stdout=output, stderr=output, start_new_session=True
                        )
                    )
                while STARTED not in log.read_text():
                    if processes[-1].poll() is not None:
                        raise RuntimeError(log.read_text())
                    time.sleep(0.02)
            subprocess.run([sys.executable, "-c", INIT], env=env | {"RAY_ADDRESS": address}, check=True, capture_output=True)
            yield time.monotonic() - began, address, env, blocks[0]
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGTERM)
            for process in processes:
                process.wait(60)
            for ports in blocks:
                ports.release()

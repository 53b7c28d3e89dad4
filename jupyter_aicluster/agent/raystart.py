"""One node's Ray: the command line and environment of ``ray start --block`` (pure), and the process (thin).

The node program is the parent, so it still works when Ray does not. Facts in here were measured with Ray 2.60; where a
constant of Ray forces something, the comment says which.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_aicluster.agent.ports import PortBlock
from jupyter_aicluster.errors import AIClusterError
from jupyter_aicluster.protocol import RayState

# What Ray appends to its temp dir for a socket; the pid may have seven digits. AF_UNIX paths end at 107 bytes on Linux.
_SOCKET_TAIL = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
AF_UNIX_MOST = 107
STARTED = "Ray runtime started."
# Variables that would make `ray start` talk to, or behave like, some other cluster.
_STALE = (
    "RAY_ADDRESS",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "RAY_NAMESPACE",
    "RAY_RUNTIME_ENV_HOOK",
    "RAY_TMPDIR",
    "RAY_CLUSTER_NAME",
    "RAY_AUTH_TOKEN",  # goes before RAY_AUTH_TOKEN_PATH
)


class TempDirTooLong(AIClusterError):
    """Ray's sockets below this folder would exceed AF_UNIX's limit."""


@dataclass(frozen=True, slots=True)
class RayPlan:
    """What one node's raylet is told. Memory in bytes."""

    node: int
    ip: str
    temp_dir: Path
    cpus: int
    gpus: int
    object_store_bytes: int
    memory_bytes: int
    gcs_address: str | None  # None: this is the head
    custom_resources: Mapping[str, float]


def check_temp_dir(path: Path, limit: int = AF_UNIX_MOST) -> None:
    """Raises `TempDirTooLong` before Ray would fail inside the job. Counts bytes, as the kernel does."""
    length = len(os.fsencode(path)) + len(_SOCKET_TAIL)
    if length > limit:
        raise TempDirTooLong(
            f"the temp folder {path} is {length - limit} bytes too long for Ray's sockets (limit {limit})",
            hint="use a shorter temp folder, such as /tmp",
        )


def command(ray: str, plan: RayPlan, ports: PortBlock) -> list[str]:
    """The argument list. Every component's port is pinned outside the workers' range: Ray draws unpinned ones from its own worker range."""
    head = [
        "--head",
        f"--port={ports['gcs']}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={ports['dashboard']}",
        f"--ray-client-server-port={ports['client_server']}",
    ]
    return [
        ray,
        "start",
        "--block",
        *(head if plan.gcs_address is None else [f"--address={plan.gcs_address}"]),
        f"--node-ip-address={plan.ip}",
        f"--node-manager-port={ports['node_manager']}",
        f"--object-manager-port={ports['object_manager']}",
        f"--dashboard-agent-listen-port={ports['dashboard_agent_http']}",
        f"--dashboard-agent-grpc-port={ports['dashboard_agent_grpc']}",
        f"--runtime-env-agent-port={ports['runtime_env_agent']}",
        f"--metrics-export-port={ports['metrics']}",
        "--min-worker-port=0",  # 0: from the kernel's ephemeral range, where no block lies
        "--max-worker-port=0",
        f"--temp-dir={plan.temp_dir}",
        f"--num-cpus={plan.cpus}",
        f"--num-gpus={plan.gpus}",
        f"--memory={plan.memory_bytes}",
        f"--object-store-memory={plan.object_store_bytes}",
        f"--resources={json.dumps(dict(plan.custom_resources))}",
        "--include-log-monitor=false",  # the node program ships the logs
        "--disable-usage-stats",
    ]


def environment(base: Mapping[str, str], token_file: Path, hosts: list[str], asked: Mapping[str, str]) -> dict[str, str]:
    """The environment of everything that belongs to the cluster's Ray: the node program's own, and what ``--env`` asked for."""
    env = {key: value for key, value in base.items() if key not in _STALE} | dict(asked)
    env |= {
        # Always both: the defaults of head, workers and clients differ.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else `ray start` takes up to 30 s to stop
        "RAY_DEDUP_LOGS": "0",  # equal-looking lines are still lines
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_worker_prestart": "0",  # one idle worker per CPU at once is a storm on a shared node
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONUNBUFFERED": "1",
    }
    # A proxy of the login shell must not stand between the nodes; both spellings are read by somebody.
    before = (env.get("no_proxy") or env.get("NO_PROXY") or "").split(",")
    direct = ",".join(dict.fromkeys(filter(None, [*before, "localhost", "127.0.0.1", *hosts])))
    return env | {"no_proxy": direct, "NO_PROXY": direct}


def object_store_bytes(shm_free: int, memory: int, sharers: int) -> int:
    """Well below the free part of /dev/shm (Ray refuses an excess of one byte), and 30 % of memory at most."""
    return max(80_000_000, min(int(shm_free * 0.8), int(memory * 0.3)) // max(1, sharers))


class RayProcess:
    """One ``ray start --block``. `state` looks at the process and its output, and never blocks."""

    def __init__(self, arguments: list[str], env: Mapping[str, str], log: Path, cwd: Path) -> None:
        self.log = log
        self._read = 0
        self._up = False
        self._text = ""
        log.unlink(missing_ok=True)  # an earlier attempt's: what it says is not about this process
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                arguments, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def state(self) -> RayState:
        if not self._up:
            with self.log.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            self._text = (self._text + new.decode(errors="replace"))[-20_000:]
            self._up = STARTED in self._text
        if self.process.poll() is not None:
            return RayState.FAILED
        return RayState.UP if self._up else RayState.STARTING

    def error(self) -> str:
        """Why it fell, for people: the exit code and the last lines of its output, without colours."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4000))
            tail = re.sub(r"\x1b\[[0-9;]*m", "", file.read().decode(errors="replace"))
        lines = [line for line in tail.splitlines() if line.strip()][-15:]
        return "\n".join([f"ray start ended with {_ended(self.process.returncode)}", *lines])


def _ended(code: int | None) -> str:
    return "no exit code" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"

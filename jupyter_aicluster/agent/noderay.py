"""This node's Ray over several tries and attempts: its ports, its process, its worker logs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from jupyter_aicluster.agent.logs import Tailer
from jupyter_aicluster.agent.ports import PortBlock, claim_block, taken
from jupyter_aicluster.agent.raystart import RayPlan, RayProcess, check_temp_dir, command, environment, object_store_bytes
from jupyter_aicluster.errors import AIClusterError
from jupyter_aicluster.procs import private_tmp
from jupyter_aicluster.protocol import RayState, Submission
from jupyter_aicluster.rundir import RunDir

PORT_TRIES = 3
_WORKER_LOG = re.compile(r"(?:worker|runtime_env_setup)-.*?(\d+)?\.(out|err|log)")


class NodeRay:
    """``state`` and ``error`` as a Beat says them; ``address`` and the rest are empty until Ray is up."""

    def __init__(self, run: RunDir, submission: Submission, node: int, temp: Path, tailer: Tailer, extra_env: Mapping[str, str]) -> None:
        self._run, self._submission, self._node, self._temp, self._tailer = run, submission, node, temp, tailer
        self._extra_env = dict(extra_env)
        self.reset()

    def reset(self) -> None:
        """Forget the last process (already ended) and give its ports back."""
        if ports := getattr(self, "_ports", None):
            ports.release()
        self._ports: PortBlock | None = None
        self._process: RayProcess | None = None
        self._bad_blocks: list[int] = []
        self._tries = 0
        self._looked_s = 0.0
        self.state: str = RayState.ABSENT
        self.error = ""
        self.address = self.dashboard = self.client_server = self.rendezvous = self.coordinator = ""

    def start(self, gcs_address: str, attempt: int) -> None:
        """Start once; said again, nothing happens."""
        if self._process is not None or self.state == RayState.FAILED:
            return
        self._gcs_address, self._attempt = gcs_address, attempt
        self.state = RayState.STARTING
        self._try()

    def _try(self) -> None:
        try:
            self._spawn()
        except (AIClusterError, OSError) as error:
            self.state, self.error = RayState.FAILED, str(error)

    def _spawn(self) -> None:
        folder = self._temp / "ray"
        check_temp_dir(folder)
        private_tmp(self._temp)
        shutil.rmtree(folder, ignore_errors=True)  # an earlier try's
        folder.mkdir(mode=0o700)
        self._tries += 1
        self._ports = claim_block(self._bad_blocks)
        ip = own_address(self._gcs_address)
        plan = RayPlan(
            node=self._node,
            ip=ip,
            temp_dir=folder,
            cpus=self._cpus(),
            gpus=self._submission.gpus_per_node,
            object_store_bytes=object_store_bytes(_shm_free(), _memory(), self._sharers()),
            memory_bytes=int(_memory() * 0.7) // self._sharers(),
            gcs_address=self._gcs_address or None,
            custom_resources={f"aicluster_node_{self._node}": 1.0},
        )
        hosts = [ip, self._gcs_address.rpartition(":")[0]]
        env = environment(os.environ, self._run.ray_token, hosts, dict(self._submission.cluster_spec.env))
        log = self._temp / f"ray-{self._attempt}-{self._tries}.log"  # one each: what an earlier start said is not this one's word
        self._process = RayProcess(command(_ray_program(), plan, self._ports), env | self._extra_env, log, self._temp)
        self._tailer.follow("ray" if self._tries == 1 else f"ray-{self._tries}", log)
        self._ip = ip

    def look(self) -> None:
        """Bring ``state`` up to date; a start that lost a port to somebody is tried again with other ports."""
        if self._process is None or self._ports is None or self.state == RayState.FAILED:
            return
        state = self._process.state()
        if state is RayState.FAILED:
            error = self._process.error()
            if self.state == RayState.STARTING and taken(error) and self._tries < PORT_TRIES:
                self._bad_blocks.append(self._ports.base)
                self._ports.release()
                self._try()
                return
            self.error = error
        elif state is RayState.UP and self.state != RayState.UP and self._node == 0:
            self.address = f"{self._ip}:{self._ports['gcs']}"
            self.dashboard = f"127.0.0.1:{self._ports['dashboard']}"
            self.client_server = f"{self._ip}:{self._ports['client_server']}"
            self.rendezvous = f"{self._ip}:{self._ports['rendezvous']}"
            self.coordinator = f"{self._ip}:{self._ports['coordinator']}"
        self.state = state

    def follow_workers(self, now: bool = False) -> None:
        """Ship what Ray's workers print, a stream for each file. Looks for new ones at most twice a second, or ``now``."""
        if self._process is None or (time.monotonic() - self._looked_s < 0.5 and not now):
            return
        self._looked_s = time.monotonic()
        for path in (self._temp / "ray").glob("session_*/logs/worker-*"):
            if match := _WORKER_LOG.fullmatch(path.name):
                self._tailer.follow(f"worker-{match[1]}.{match[2]}", path)

    def _sharers(self) -> int:
        return _sharers(self._submission)

    def _cpus(self) -> int:
        """Ray's logical CPUs: as asked, else our share of what this process may use; one a GPU at least, so that all can be used."""
        return self._submission.cluster_spec.cpus_per_node or max(cpu_share(self._submission), self._submission.gpus_per_node)


def _sharers(submission: Submission) -> int:
    """Nodes of this cluster on this machine."""
    return submission.nodes if submission.backend == "local" else 1


def cpu_share(submission: Submission) -> int:
    """CPUs of one node: as asked, else its share of what this process may use."""
    return submission.cluster_spec.cpus_per_node or len(os.sched_getaffinity(0)) // _sharers(submission)


def own_address(peer: str) -> str:
    """This node's address on the route to ``peer`` (host:port; empty: any other machine); never from the host name. Sends nothing."""
    host = peer.rpartition(":")[0] or "192.0.2.1"  # TEST-NET-1: only asks the routing table
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            address = str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"  # no route at all: a machine on its own
    return address if usable(address) else "127.0.0.1"


def usable(address: str) -> bool:
    """Whether other nodes could dial this text: not empty, several words, unspecified, link-local or IPv6 loopback."""
    import ipaddress

    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_unspecified or parsed.is_link_local or parsed.is_loopback)


def _ray_program() -> str:
    beside = Path(sys.executable).with_name("ray")
    return str(beside) if beside.exists() else "ray"


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _shm_free() -> int:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize

"""How Ray is started: the command line, its environment, and a process that is watched. (cases.md A1–A4, A7, A10, A15, A16, A20, A22)"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.agent.noderay import own_address, usable
from jupyter_aicluster.agent.ports import RAYS, PortBlock
from jupyter_aicluster.agent.raystart import (
    AF_UNIX_MOST,
    RayPlan,
    RayProcess,
    TempDirTooLong,
    check_temp_dir,
    command,
    environment,
    object_store_bytes,
)
from jupyter_aicluster.protocol import RayState

TAIL = "/session_2025-04-16_17-26-47_592207_2944448/sockets/plasma_store"
HEAD = RayPlan(
    node=0,
    ip="10.0.1.12",
    temp_dir=Path("/tmp/aic-0123456789ab-0/ray"),
    cpus=8,
    gpus=4,
    object_store_bytes=1_000_000_000,
    memory_bytes=2_000_000_000,
    gcs_address=None,
    custom_resources={"aicluster_node_0": 1.0},
)


@pytest.fixture
def block() -> PortBlock:
    return PortBlock(20_000, socket.socket())


def plan(node: int = 0, gcs_address: str | None = None) -> RayPlan:
    return RayPlan(node, HEAD.ip, HEAD.temp_dir, 8, 4, 1_000_000_000, 2_000_000_000, gcs_address, {f"aicluster_node_{node}": 1.0})


def test_the_heads_command_line(block: PortBlock) -> None:
    block.release()
    assert command("/v/bin/ray", HEAD, block) == [
        "/v/bin/ray",
        "start",
        "--block",
        "--head",
        "--port=20001",
        "--dashboard-host=127.0.0.1",
        "--dashboard-port=20002",
        "--ray-client-server-port=20003",
        "--node-ip-address=10.0.1.12",
        "--node-manager-port=20004",
        "--object-manager-port=20005",
        "--dashboard-agent-listen-port=20006",
        "--dashboard-agent-grpc-port=20007",
        "--runtime-env-agent-port=20008",
        "--metrics-export-port=20009",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--temp-dir=/tmp/aic-0123456789ab-0/ray",
        "--num-cpus=8",
        "--num-gpus=4",
        "--memory=2000000000",
        "--object-store-memory=1000000000",
        '--resources={"aicluster_node_0": 1.0}',
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]


def test_a_worker_joins_the_address_and_has_no_heads_ports(block: PortBlock) -> None:
    block.release()
    head, worker = command("ray", plan(), block), command("ray", plan(1, "10.0.1.11:20001"), block)
    assert "--address=10.0.1.11:20001" in worker
    assert not {"--head", "--port=20001"} & set(worker)
    assert [flag for flag in worker if "dashboard-port" in flag or "client-server" in flag] == []
    assert {flag.split("=")[0] for flag in head} - {flag.split("=")[0] for flag in worker} == {
        "--head",
        "--port",
        "--dashboard-host",
        "--dashboard-port",
        "--ray-client-server-port",
    }


def test_every_component_is_pinned_outside_the_workers_range(block: PortBlock) -> None:
    """A1: Ray draws ports that are not pinned from its own workers' range, and then refuses its own choice."""
    block.release()
    flags = command("ray", HEAD, block)
    pinned = {int(match[1]) for flag in flags if (match := re.fullmatch(r"--[a-z-]*port=(\d+)", flag)) and match[1] != "0"}
    assert pinned == {block[component] for component in RAYS}
    assert "--min-worker-port=0" in flags  # 0: whatever the kernel gives, which lies outside every block
    assert "--max-worker-port=0" in flags


def test_no_port_that_another_users_head_has_is_a_constant(block: PortBlock) -> None:
    block.release()
    assert not {"6379", "8265", "10001"} & {flag.rpartition("=")[2] for flag in command("ray", HEAD, block)}


def test_the_gpus_granted_are_told_also_none(block: PortBlock) -> None:
    """A15: without the flags Ray takes the whole machine."""
    block.release()
    none = RayPlan(0, HEAD.ip, HEAD.temp_dir, 1, 0, 1, 1, None, {})
    assert {"--num-gpus=0", "--num-cpus=1", "--memory=1"} <= set(command("ray", none, block))


# ---- temp folders (A3, A4)


@pytest.mark.parametrize("letter", ["x", "é", "日"])
def test_the_sockets_path_may_have_107_bytes_and_no_more(letter: str) -> None:
    room = AF_UNIX_MOST - len(TAIL.encode()) - len("/tmp/")
    count, rest = divmod(room, len(letter.encode()))
    fits = Path("/tmp/" + letter * count + "x" * rest)
    assert len(os.fsencode(str(fits) + TAIL)) == 107
    check_temp_dir(fits)
    with pytest.raises(TempDirTooLong, match="1 bytes too long") as caught:
        check_temp_dir(Path(f"{fits}x"))
    assert "/tmp" in caught.value.hint


def test_the_kernel_agrees_on_the_limit(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        for length, works in ((107, True), (108, False)):
            name = f"/proc/self/fd/{folder}/".ljust(length, "s")
            with socket.socket(socket.AF_UNIX) as probe:
                if works:
                    probe.bind(name)
                else:
                    with pytest.raises(OSError, match="too long"):
                        probe.bind(name)
    finally:
        os.close(folder)


def test_the_budget_holds_for_a_real_session_with_a_seven_digit_pid() -> None:
    with pytest.raises(TempDirTooLong):
        check_temp_dir(Path("/net/sitesite/people/useruser1/slurm_jobdir/1355700/tmp.t0016/ray"))
    check_temp_dir(Path("/tmp/aic-0123456789ab-511/ray"))


# ---- the environment (A10, A16, A22)


def test_nothing_of_another_cluster_is_left() -> None:
    stale = {
        "RAY_ADDRESS": "10.9.9.9:6379",
        "RAY_NAMESPACE": "theirs",
        "RAY_TMPDIR": "/tmp/ray",
        "RAY_AUTH_TOKEN": "theirs",
        "RAY_AUTH_MODE": "disabled",
    }
    env = environment(stale | {"PATH": "/bin", "HOME": "/h"}, Path("/run/ray.token"), ["10.0.0.1"], {})
    assert not {"RAY_ADDRESS", "RAY_NAMESPACE", "RAY_TMPDIR", "RAY_AUTH_TOKEN"} & set(env)
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/run/ray.token")
    assert (env["PATH"], env["HOME"]) == ("/bin", "/h")


@pytest.mark.parametrize(
    ("given_env", "before"),
    [
        ({}, []),
        ({"no_proxy": "localhost,.example.org"}, ["localhost", ".example.org"]),
        ({"NO_PROXY": ".example.org,"}, [".example.org"]),
        ({"no_proxy": "", "NO_PROXY": "a"}, ["a"]),
    ],
)
def test_no_proxy_stands_between_the_nodes_in_either_spelling(given_env: dict[str, str], before: list[str]) -> None:
    env = environment({"https_proxy": "http://proxy:3128"} | given_env, Path("/t"), ["10.0.1.12", "10.0.1.11"], {})
    assert env["no_proxy"] == env["NO_PROXY"]
    hosts = env["no_proxy"].split(",")
    assert hosts[: len(before)] == before
    assert {"localhost", "127.0.0.1", "10.0.1.12", "10.0.1.11"} <= set(hosts)
    assert len(hosts) == len(set(hosts))
    assert "" not in hosts
    assert env["https_proxy"] == "http://proxy:3128"


def test_ray_starts_no_storm_of_workers_and_stops_at_once() -> None:
    env = environment({}, Path("/t"), [], {"OMP_NUM_THREADS": "4"})
    assert env["RAY_enable_worker_prestart"] == env["RAY_prestart_worker_first_driver"] == "0"
    assert env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["OMP_NUM_THREADS"] == "4"  # --env


# ---- the object store (A20)

RAYS_LEAST = 75 * 1024 * 1024  # ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES: less is refused


@given(st.integers(0, 1 << 42), st.integers(1 << 28, 1 << 42), st.integers(0, 16))
def test_the_object_stores_of_a_machine_stay_below_its_shared_memory(shm: int, memory: int, sharers: int) -> None:
    size = object_store_bytes(shm, memory, sharers)
    assert size >= RAYS_LEAST
    if size > 80_000_000:
        assert size * max(1, sharers) <= 0.8 * shm
        assert size * max(1, sharers) <= 0.3 * memory


def test_a_hair_below_is_not_enough_of_a_margin() -> None:
    assert object_store_bytes(11_811_123_200, 1 << 40, 1) < 11_811_123_200 * 0.9


def test_a_containers_64_mib_of_shm_give_rays_least() -> None:
    assert object_store_bytes(67_108_864, 1 << 36, 1) == 80_000_000


# ---- addresses (A7)


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.1.12", "2001:db8::1", "172.16.0.1"])
def test_addresses_that_other_nodes_can_dial(address: str) -> None:
    assert usable(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.1.1",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "fe80::1",
        "169.254.3.4",
        "10.1.2.3 fe80::1",
        "10.0.1.12 192.168.1.12",
        "node001",
        "10.1.2",
    ],
)
def test_addresses_that_they_cannot(address: str) -> None:
    assert not usable(address)


class Route:
    """A socket whose route leads where the test says."""

    def __init__(self, source: str | None) -> None:
        self.source, self.asked = source, ""

    def __call__(self, *arguments: object) -> Route:
        return self

    def __enter__(self) -> Route:
        return self

    def __exit__(self, *error: object) -> None: ...

    def connect(self, peer: tuple[str, int]) -> None:
        self.asked = peer[0]
        if self.source is None:
            raise OSError(101, "Network is unreachable")

    def getsockname(self) -> tuple[str | None, int]:
        return self.source, 1


@pytest.mark.parametrize(
    ("source", "own"),
    [("10.1.2.3", "10.1.2.3"), ("127.0.1.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("169.254.1.1", "127.0.0.1"), (None, "127.0.0.1")],
)
def test_the_own_address_is_the_routes_source_never_the_host_names(monkeypatch: pytest.MonkeyPatch, source: str | None, own: str) -> None:
    route = Route(source)
    monkeypatch.setattr(socket, "socket", route)
    monkeypatch.setattr(socket, "gethostbyname", None)
    assert own_address("192.168.1.11:20001") == own
    assert route.asked == "192.168.1.11"
    assert own_address("") == own
    assert route.asked == "192.0.2.1"


# ---- the process


def wait_for(process: RayProcess, state: RayState) -> None:
    deadline = time.monotonic() + 10
    while (seen := process.state()) is not state:
        assert time.monotonic() < deadline, f"{seen}, not {state}"
        time.sleep(0.01)


def start(log: Path, code: str) -> RayProcess:
    """A program that prints as `ray start --block` does."""
    return RayProcess([sys.executable, "-u", "-c", code], {"PATH": os.environ["PATH"]}, log, log.parent)


def test_up_is_what_ray_says_and_failed_is_its_exit_with_its_last_words(tmp_path: Path) -> None:
    process = start(tmp_path / "ray.log", "print('wait'); print('\\x1b[32mRay runtime started.\\x1b[0m'); import time; time.sleep(60)")
    wait_for(process, RayState.UP)
    process.process.terminate()
    wait_for(process, RayState.FAILED)
    assert process.error().splitlines() == ["ray start ended with signal 15", "wait", "Ray runtime started."]


def test_a_start_that_never_was(tmp_path: Path) -> None:
    process = start(tmp_path / "ray.log", "print('Unable to connect to GCS at 10.249.16.183:6379'); raise SystemExit(3)")
    assert process.state() is not RayState.UP
    wait_for(process, RayState.FAILED)
    assert process.error() == "ray start ended with exit code 3\nUnable to connect to GCS at 10.249.16.183:6379"


def test_what_an_earlier_attempt_printed_does_not_count(tmp_path: Path) -> None:
    """The next attempt starts from nothing: its Ray is not up because the last one was."""
    log = tmp_path / "ray-1.log"
    log.write_text("Address already in use\nRay runtime started.\n")
    process = start(log, "print('hello'); import time; time.sleep(60)")
    try:
        deadline = time.monotonic() + 10
        while b"hello" not in log.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.state() is RayState.STARTING
    finally:
        process.process.kill()
    wait_for(process, RayState.FAILED)
    assert process.error() == "ray start ended with signal 9\nhello"


def test_resources_are_one_json_argument(block: PortBlock) -> None:
    block.release()
    (flag,) = [flag for flag in command("ray", HEAD, block) if flag.startswith("--resources=")]
    assert json.loads(flag.partition("=")[2]) == {"aicluster_node_0": 1.0}

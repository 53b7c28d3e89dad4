"""What the local backend would start, whether it fits, and what it says while a cluster waits. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_aicluster.backends.local.backend import supervisor_env
from jupyter_aicluster.backends.local.render import Machine, make_plan, waiting_reason
from jupyter_aicluster.ledger import Entry, Snapshot
from jupyter_aicluster.plan import Fit, Guess, Inventory, Plan, Pool
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.spec import ClusterSpec

SIMULATED = Pool("this machine", 16, 16, None, 16, simulated=True)
REAL = Pool("this machine", 8, 8, "NVIDIA H100 80GB HBM3", 8)
MACHINE = Machine(cpus=8, mem_bytes=64 << 30)
PROGRAM = ("/venv/bin/python", "-m", "jupyter_aicluster.agent", "local")


def plan(spec: ClusterSpec, pool: Pool = SIMULATED) -> Plan:
    return make_plan(spec, Inventory((pool,)), MACHINE, PROGRAM, Path("/home/u/my runs"))


def test_the_text_is_the_command() -> None:
    assert plan(ClusterSpec(gpus=8, nodes=2, priority=3)).text == (
        "PYTHONPATH='/home/u/my runs/UID/bundle.zip' /venv/bin/python -m jupyter_aicluster.agent local --run '/home/u/my runs/UID'\n"
        "# waits for 8 simulated GPUs of this machine, then starts 2 × 4 simulated GPUs, with priority 3"
    )


@pytest.mark.parametrize(
    ("spec", "pool", "fit", "because"),
    [
        (ClusterSpec(gpus=16), SIMULATED, Fit.NOW, "16 of 16 simulated GPUs of this machine are free"),
        (ClusterSpec(gpus=24), SIMULATED, Fit.NEVER, "24 GPUs, this machine has 16 simulated GPUs"),
        (ClusterSpec(gpus=2), replace(SIMULATED, total=1, free=1), Fit.NEVER, "2 GPUs, this machine has 1 simulated GPU"),
        (ClusterSpec(gpus=4), replace(SIMULATED, free=2), Fit.WAITS, "2 of 16 simulated GPUs of this machine are free"),
        (
            ClusterSpec(gpus=1),
            replace(SIMULATED, free=2, waiting=4),
            Fit.WAITS,
            "2 of 16 simulated GPUs of this machine are free and 4 GPUs asked for before",
        ),
        (ClusterSpec(gpus=1, gpu_type="h100"), SIMULATED, Fit.NEVER, "h100 GPUs, this machine has simulated ones"),
        (ClusterSpec(gpus=1, gpu_type="h100"), REAL, Fit.NOW, "8 of 8 GPUs of this machine are free"),
        (ClusterSpec(gpus=1, gpu_type="a100"), REAL, Fit.NEVER, "a100 GPUs, this machine has NVIDIA H100 80GB HBM3"),
        (ClusterSpec(gpus=1, gpu_type="a100"), replace(REAL, gpu_type=None), Fit.NEVER, "a100 GPUs, this machine has GPUs of unknown type"),
        (ClusterSpec(gpus=4, nodes=4, cpus_per_node=3), SIMULATED, Fit.NEVER, "4 × 3 CPUs, this machine has 8"),
        (ClusterSpec(gpus=4, nodes=4, cpus_per_node=2), SIMULATED, Fit.NOW, "16 of 16 simulated GPUs of this machine are free"),
        (
            ClusterSpec(gpus=4, nodes=2, mem_per_node_bytes=40 << 30),
            SIMULATED,
            Fit.NEVER,
            "2 × 42.9 GB of memory, this machine has 68.7 GB",
        ),
        (ClusterSpec(gpus=1), replace(SIMULATED, total=0, free=0), Fit.NEVER, "1 GPU, this machine has 0 simulated GPUs"),
    ],
)
def test_fit(spec: ClusterSpec, pool: Pool, fit: Fit, because: str) -> None:
    made = plan(spec, pool)
    assert (made.fit, made.because) == (fit, because)


def test_what_nobody_said_is_told() -> None:
    assert plan(ClusterSpec(gpus=24)).guesses == (
        Guess("2 nodes of 12 GPUs", "-N"),
        Guess("16 simulated GPUs: there is no NVIDIA GPU on this machine", "--backend"),
    )
    assert plan(ClusterSpec(gpus=8), REAL).guesses == ()


def test_routing_is_skipped_as_it_was_typed() -> None:
    spec = ClusterSpec(gpus=1, queue="gpu", account="me", qos="high", image="img:1")
    assert plan(spec).skipped == ("-p gpu", "-A me", "--qos high", "--image img:1")


def entry(name: str, gpus: int, slots: int = 0) -> Entry:
    return Entry(name, name, gpus, 0, 1, "", 0.0, tuple(f"sim{number}" for number in range(slots)))


def test_waiting_has_a_reason() -> None:
    waiting = (entry("owl", 4), entry("elk", 1), entry("bee", 1))
    seen = Snapshot(tuple(f"sim{number}" for number in range(16)), (entry("fox", 14, 14),), waiting)
    assert [waiting_reason(one, seen) for one in waiting] == [
        "Waiting for 4 GPUs: 2 of 16 are free; fox holds 14",
        "Waiting for 1 GPU: 2 of 16 are free; fox holds 14; first owl",
        "Waiting for 1 GPU: 2 of 16 are free; fox holds 14; first owl and elk",
    ]


def test_nothing_of_another_cluster_is_inherited(tmp_path: Path) -> None:
    environ = {
        "PATH": "/bin",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_AUTH_TOKEN_PATH": "/old",
        "RAY_DEDUP_LOGS": "0",
        "AICLUSTER_UID": "old",
        "AICLUSTER_NODE": "3",
        "PYTHONPATH": "/mine",
    }
    run = RunDir(tmp_path)
    assert supervisor_env(environ, run) == {"PATH": "/bin", "RAY_DEDUP_LOGS": "0", "PYTHONPATH": "/mine"}
    run.bundle.touch()
    assert supervisor_env({}, run)["PYTHONPATH"] == str(run.bundle)
    assert supervisor_env(environ, run)["PYTHONPATH"] == f"{run.bundle}:/mine"

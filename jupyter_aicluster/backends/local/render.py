"""What the local backend starts, as arguments and as text; and whether a request fits this machine. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_aicluster.ledger import Entry, Snapshot
from jupyter_aicluster.plan import Fit, Guess, Inventory, Plan
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.units import format_size

NAME = "local"
MACHINE = "this machine"
_ROUTING = (("queue", "-p"), ("account", "-A"), ("qos", "--qos"), ("image", "--image"))


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has besides GPUs."""

    cpus: int
    mem_bytes: int


def make_plan(spec: ClusterSpec, inventory: Inventory, machine: Machine, program: Sequence[str], runs: Path) -> Plan:
    """Pure; see `Backend.plan`."""
    pool = inventory.pools[0]
    nodes, per_node = spec.shape(max(1, pool.total))
    kind = "simulated GPUs" if pool.simulated else "GPUs"
    guesses = []
    if spec.nodes is None and spec.gpus_per_node is None and nodes > 1:
        guesses.append(Guess(f"{nodes} nodes of {per_node} GPUs", "-N"))
    if pool.simulated:
        guesses.append(Guess(f"{pool.total} simulated GPUs: there is no NVIDIA GPU on this machine", "--backend"))
    fit, because = _fit(spec, inventory, machine, nodes)
    run = runs / "UID"
    text = f"PYTHONPATH={shlex.quote(str(run / 'bundle.zip'))} {shlex.join([*program, '--run', str(run)])}"
    text += f"\n# waits for {_count(spec.gpus, kind)} of {MACHINE}, then starts {nodes} × {_count(per_node, kind)}"
    if spec.priority:
        text += f", with priority {spec.priority}"
    skipped = tuple(f"{flag} {value}" for name, flag in _ROUTING if (value := getattr(spec, name)) is not None)
    return Plan(NAME, spec, nodes, per_node, text, fit, because, guesses=tuple(guesses), skipped=skipped, simulated=pool.simulated)


def _fit(spec: ClusterSpec, inventory: Inventory, machine: Machine, nodes: int) -> tuple[Fit, str]:
    pool = inventory.pools[0]
    kind = "simulated GPUs" if pool.simulated else "GPUs"
    free, total = pool.free or 0, pool.total
    cpus, mem_bytes = nodes * (spec.cpus_per_node or 0), nodes * (spec.mem_per_node_bytes or 0)
    if spec.gpus > total:
        return Fit.NEVER, f"{_count(spec.gpus, 'GPUs')}, {MACHINE} has {_count(total, kind)}"
    if spec.gpu_type is not None and not _is_type(spec.gpu_type, pool.gpu_type):
        has = "simulated ones" if pool.simulated else f"{pool.gpu_type or 'GPUs of unknown type'}"
        return Fit.NEVER, f"{spec.gpu_type} GPUs, {MACHINE} has {has}"
    if cpus > machine.cpus:
        return Fit.NEVER, f"{nodes} × {spec.cpus_per_node} CPUs, {MACHINE} has {machine.cpus}"
    if mem_bytes > machine.mem_bytes:
        asked = f"{nodes} × {format_size(spec.mem_per_node_bytes or 0)} of memory"
        return Fit.NEVER, f"{asked}, {MACHINE} has {format_size(machine.mem_bytes)}"
    if spec.gpus <= free and not pool.waiting:
        return Fit.NOW, f"{free} of {_count(total, kind)} of {MACHINE} are free"
    ahead = f" and {_count(pool.waiting, 'GPUs')} asked for before" if pool.waiting else ""
    return Fit.WAITS, f"{free} of {_count(total, kind)} of {MACHINE} are free{ahead}"


def waiting_reason(entry: Entry, seen: Snapshot) -> str:
    """``Waiting for 4 GPUs: 2 of 16 are free; fox holds 14``, and who is ahead."""
    text = f"Waiting for {_count(entry.gpus, 'GPUs')}: {len(seen.free)} of {len(seen.slots)} are free"
    if seen.holders:
        text += "; " + ", ".join(f"{holder.name} holds {len(holder.slots)}" for holder in seen.holders)
    ahead = [other.name for other in seen.waiting[: (seen.position(entry.uid) or 1) - 1]]
    return text + (f"; first {_and(ahead)}" if ahead else "")


def _is_type(wanted: str, has: str | None) -> bool:
    return has is not None and wanted.lower() in has.lower()


def _count(number: int, plural: str) -> str:
    return f"{number} {plural if number != 1 else plural.removesuffix('s')}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

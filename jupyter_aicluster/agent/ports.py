"""Ports for Ray and for ranks that nothing else will take between finding and using them.

Ray's components each want a port, and on a shared machine any port found free a moment ago may be gone. So a node
program claims a *block*: it binds the block's first port for as long as it lives. Whoever else runs this code, under
any user, then takes another block, and the kernel gives the claim back however the process ends. Blocks lie outside
the range from which the kernel draws ports for outgoing connections and ``bind(0)``, and Ray's workers draw from that
range, so neither can take a block's port, nor can one Ray component take another's.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jupyter_aicluster.errors import AIClusterError

RAYS = (
    "gcs",
    "dashboard",
    "client_server",
    "node_manager",
    "object_manager",
    "dashboard_agent_http",
    "dashboard_agent_grpc",
    "runtime_env_agent",
    "metrics",
)
COMPONENTS = (
    *RAYS,
    "rendezvous",  # of ranks: torch.distributed's store
    "coordinator",  # of ranks: JAX's
)
_SIZE = 16
_RAY_CLIENT = range(23_000, 24_000)  # where a Ray Client server gives each of its clients a port, fixed in Ray
_LOWEST = 20_000  # above Ray's own default worker range (10002-19999), which other people's Rays use
_HIGHEST = 65_535


class NoPorts(AIClusterError):
    """Every block is taken."""


@dataclass(frozen=True)
class PortBlock:
    """``base`` is held by ``claim``; the components have the ports after it."""

    base: int
    claim: socket.socket

    def __getitem__(self, component: str) -> int:
        return self.base + 1 + COMPONENTS.index(component)

    def release(self) -> None:
        self.claim.close()


def ephemeral_range(text: str | None = None) -> range:
    """The kernel's range for ports nobody asked for; ``text`` as in ``/proc/sys/net/ipv4/ip_local_port_range``."""
    try:
        low, high = map(int, (text or Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()).split())
    except (OSError, ValueError):
        low, high = 32_768, 60_999
    return range(low, high + 1)


def blocks(ephemeral: range) -> list[int]:
    """Bases of all blocks outside the ephemeral range; where it leaves no room, all there are."""
    every = range(_LOWEST, _HIGHEST - _SIZE, _SIZE)
    outside = [base for base in every if base + _SIZE <= ephemeral.start or base >= ephemeral.stop]
    return [base for base in outside or every if base + _SIZE <= _RAY_CLIENT.start or base >= _RAY_CLIENT.stop]


def claim_block(avoid: Iterable[int] = (), ephemeral: range | None = None) -> PortBlock:
    """The first block whose ports are all free on this machine, its first port bound until `PortBlock.release`.

    ``avoid``: bases that turned out bad (somebody took a port between our probe and Ray's bind). Raises `NoPorts`.
    """
    bad = set(avoid)
    for base in blocks(ephemeral if ephemeral is not None else ephemeral_range()):
        if base in bad:
            continue
        claim = _bind(base)
        if claim is None:
            continue
        if all(_free(base + 1 + offset) for offset in range(len(COMPONENTS))):
            return PortBlock(base, claim)
        claim.close()
    raise NoPorts("no block of free ports is left on this node", hint="stop a cluster: %gpujob list")


def _bind(port: int) -> socket.socket | None:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.bind(("", port))  # all interfaces, without SO_REUSEADDR: fails when anybody has it anywhere
    except OSError:
        held.close()
        return None
    return held


def _free(port: int) -> bool:
    probe = _bind(port)
    if probe is None:
        return False
    probe.close()
    return True


def taken(log: str) -> bool:
    """Whether Ray's output says that one of its ports was taken: then another block is worth a try."""
    said = log.lower()
    return any(words in said for words in ("used by other components", "address already in use", "is already in use"))

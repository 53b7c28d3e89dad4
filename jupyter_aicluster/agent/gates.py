"""Gates: how many nodes must have connected and joined, by when, and which are missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class GateName(StrEnum):
    CONNECTED = "connected"  # node programs that reached the hub
    JOINED = "joined"  # raylets in the Ray cluster


@dataclass(frozen=True, slots=True)
class Gate:
    """``want`` nodes by ``deadline_s`` (the hub's clock)."""

    name: GateName
    want: int
    deadline_s: float

    def data(self, have: Iterable[int]) -> dict[str, Any]:
        """Data of a GATE event."""
        here = set(have)
        return {
            "gate": str(self.name),
            "have": len(here),
            "want": self.want,
            "missing": [k for k in range(self.want) if k not in here],
            "deadline_s": self.deadline_s,
        }

    def late(self, have: Iterable[int], now_s: float) -> list[int]:
        """The missing nodes, once the deadline has passed."""
        here = set(have)
        return [k for k in range(self.want) if k not in here] if now_s >= self.deadline_s else []


_DOING = {
    GateName.CONNECTED: "its node program never reached the hub",
    GateName.JOINED: "its raylet did not join the Ray cluster",
}


def verdict(gate: Gate, late: list[int], tails: dict[int, str], waited_s: float) -> tuple[str, str]:
    """(cause, evidence) of a gate that timed out: a sentence, and the log tails of the nodes it names."""
    nodes = ", ".join(map(str, late[:8])) + (" …" if len(late) > 8 else "")
    one = len(late) == 1
    cause = (
        f"only {gate.want - len(late)} of {gate.want} nodes {gate.name} within {waited_s:.0f} s: "
        f"node{'' if one else 's'} {nodes} missing ({_DOING[gate.name] if one else _DOING[gate.name].replace('its', 'their', 1)})"
    )
    evidence = "\n".join(f"node {k}: {tails[k] or 'no output yet'}" for k in late[:4] if k in tails)
    return cause, evidence

"""Nodes, their gates and their GPUs, as the card shows them. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_BUSY_PERCENT = 5.0
_FRAME = struct.Struct("<4f")
_NAN = float("nan")
_LOST = -1.0


@dataclass
class _Node:
    host: str = ""
    state: str = ""
    gpus: tuple[Mapping[str, Any], ...] = ()
    samples: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        return any(gpu.get("simulated") for gpu in self.gpus)


class Nodes:
    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._gates: dict[str, tuple[int, int]] = {}
        self._missing: tuple[int, ...] = ()

    def hear(self, number: int, host: str, state: str, gpus: tuple[Mapping[str, Any], ...]) -> None:
        """What is empty stays as it was."""
        node = self._nodes.setdefault(number, _Node())
        node.host, node.state, node.gpus = host or node.host, state or node.state, gpus or node.gpus
        if node.state in ("lost", "left"):
            node.samples.clear()

    def gate(self, name: str, have: int, want: int, missing: tuple[int, ...]) -> None:
        self._gates[name] = (have, want)
        self._missing = missing

    def sample(self, number: int, samples: Iterable[Mapping[str, Any]]) -> None:
        """The newest readings of a node."""
        self._nodes.setdefault(number, _Node()).samples = {str(sample["index"]): sample for sample in samples}

    def fall(self) -> None:
        """All start again: the gates too."""
        self._gates.clear()
        self._missing = ()

    @property
    def simulated(self) -> bool:
        return any(node.simulated for node in self._nodes.values())

    def progress(self) -> tuple[str, int, int] | None:
        """(gate, have, want) of the gate that was heard of last."""
        if not self._gates:
            return None
        name, (have, want) = next(reversed(self._gates.items()))
        return name, have, want

    def busy(self) -> tuple[int, int] | None:
        """(GPUs over 5 %, GPUs that can be read); None where none can be."""
        loads = [sample.get("util_percent") for node in self._nodes.values() for sample in node.samples.values()]
        readable = [load for load in loads if load is not None]
        return (sum(load > _BUSY_PERCENT for load in readable), len(readable)) if readable else None

    def frame(self) -> bytes:
        """The newest samples in the order of ``to_json()[]["gpus"][]``, four float32 each; NaN where not readable."""
        packed = []
        for _, node in sorted(self._nodes.items()):
            for gpu in node.gpus:
                sample = node.samples.get(str(gpu["index"]), {})
                util = _LOST if sample.get("lost") else _float(sample.get("util_percent"))
                packed.append(
                    _FRAME.pack(util, _float(sample.get("mem_used_bytes")), _float(sample.get("power_w")), _float(sample.get("temp_c")))
                )
        return b"".join(packed)

    def to_json(self) -> list[dict[str, Any]]:
        """Node[] of model.ts."""
        return [
            {"node": number, "host": node.host, "state": node.state, "simulated": node.simulated, "gpus": [_gpu(gpu) for gpu in node.gpus]}
            for number, node in sorted(self._nodes.items())
        ]

    def gates_json(self) -> dict[str, Any]:
        """Gates of model.ts."""
        gates: dict[str, Any] = {name: self._gate_json(name) for name in ("connected", "joined")}
        return {**gates, "missing": [self._missing_json(number) for number in self._missing]}

    def _gate_json(self, name: str) -> dict[str, int] | None:
        return {"have": self._gates[name][0], "want": self._gates[name][1]} if name in self._gates else None

    def _missing_json(self, number: int) -> dict[str, Any]:
        node = self._nodes.get(number) or _Node(state="not heard of yet")
        return {"node": number, "host": node.host, "why": node.state}


def _gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": str(gpu["index"]), "name": gpu.get("name", ""), "mem_total_bytes": gpu.get("mem_total_bytes")}


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else _NAN

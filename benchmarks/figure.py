"""One figure: what was measured, what it may be at most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """``ok`` when ``value`` is at most ``budget``; ``detail`` says what the ratio was made of."""

    name: str
    value: float
    budget: float
    unit: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.value <= self.budget

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'OVER'} {self.name}: {self.value:.3g} {self.unit} (budget {self.budget:.3g})  {self.detail}"

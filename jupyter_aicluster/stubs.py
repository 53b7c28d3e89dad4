"""What stands in the notebook for a variable that did not come back: a word about it, or the way to fetch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_aicluster.errors import NotFound
from jupyter_aicluster.units import format_size


@dataclass(frozen=True, slots=True)
class Stub:
    """Stands in the notebook for a variable that stayed on the cluster."""

    name: str
    type_name: str
    why: str

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type_name}, still on the cluster. {self.why}>"


@dataclass(frozen=True, slots=True, repr=False)
class RemoteValue(Stub):
    """A variable too large to come back unasked. It lies in its cluster's storage under ``key``, and outlives the GPUs there."""

    size_bytes: int = 0
    key: str = ""
    source: Callable[[str], Path] | None = field(default=None, compare=False)  # a file with the value

    def fetch(self) -> Any:
        """The value, from the cluster's storage: also when the GPUs were given back. Raises `NotFound` where that is gone."""
        from jupyter_aicluster.payload import unpack

        if self.source is None:
            raise NotFound(f"nobody here knows where {self.name} is", hint="fetch it in the notebook whose cell made it")
        with self.source(self.key).open("rb") as file:
            return unpack(file, tolerant=True)[self.name]

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteValue, (self.name, self.type_name, self.why, self.size_bytes, self.key)

    def __repr__(self) -> str:
        size = format_size(self.size_bytes)
        return f"<{self.name}: {self.type_name}, {size}, in its cluster's storage. {self.name}.fetch() brings it here.>"

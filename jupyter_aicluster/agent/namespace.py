"""The session's ``__main__``, and which of its names a cell has assigned or changed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jupyter_aicluster.fingerprints import fingerprints


def fresh_main() -> ModuleType:
    """A new, empty ``__main__``, put in place: what cells define is found there by pickle, Ray and child processes."""
    module = ModuleType("__main__", "The cells of one session.")
    sys.modules["__main__"] = module
    return module


@dataclass(frozen=True, slots=True)
class Before:
    """What some names were before a cell ran. Holds the values, so that an id is not given to another object."""

    values: Mapping[str, Any]
    prints: Mapping[str, int | None]

    @classmethod
    def look(cls, names: Iterable[str], namespace: Mapping[str, Any]) -> Before:
        values = {name: namespace[name] for name in names if name in namespace}
        return cls(values, fingerprints(values))

    def changed(self, names: Iterable[str], namespace: Mapping[str, Any], assigned: Collection[str] = ()) -> dict[str, Any]:
        """The names among ``names`` that are new, hold another object or a changed one, or are in ``assigned``."""
        now = {name: namespace[name] for name in names if name in namespace}
        same = {name: value for name, value in now.items() if name not in assigned and self.values.get(name, now) is value}
        prints = fingerprints(same)
        return {name: value for name, value in now.items() if name not in same or prints[name] != self.prints[name]}

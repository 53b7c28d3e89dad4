"""The session's ``__main__``, and which of its names come in and go back with a cell."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jupyter_aicluster.errors import AIClusterError, NameConflict
from jupyter_aicluster.likeness import fingerprint, kin
from jupyter_aicluster.names import of_the_shell
from jupyter_aicluster.protocol import CellRequest
from jupyter_aicluster.sizes import measure
from jupyter_aicluster.travelled import Travelled
from jupyter_aicluster.unpicklable import type_name

_NOTHING = object()
_MOST_SHOWN = 1000


def fresh_main() -> ModuleType:
    """A new, empty ``__main__``, put in place: what cells define is found there by pickle, Ray and child processes."""
    module = ModuleType("__main__", "The cells of one session.")
    sys.modules["__main__"] = module
    return module


class Missing(AIClusterError):
    """The client took the driver to have names that it does not have."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(f"the cluster no longer has {', '.join(names)}", hint="run the cell again: what it needs is sent anew")
        self.names = tuple(names)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a cell has done to the names: ``back`` goes to the notebook; ``along``: unchanged, but shares parts."""

    back: Mapping[str, Any]
    along: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


class Names:
    """The driver's half of `Travelled`: for each cell `admit` its inputs, `look`, run it, ask for its `changes`, note what was `sent`."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._travelled = Travelled()
        self._bindings: dict[str, Any] = {}  # before the cell; holds the values, so that an id is not given to another object
        self._prints: dict[str, bytes | None] = {}  # before the cell, of names that it may change and that never travelled
        self._touched: set[str] = set()
        self._wanted: set[str] = set()

    def admit(self, request: CellRequest, values: Mapping[str, Any]) -> None:
        """Take the inputs, all or none. `NameConflict`: both sides changed one; `Missing`: one was neither sent nor is here."""
        if lacks := [name for name in request.based if name not in values and name not in self._namespace]:
            raise Missing(lacks)
        conflicts = [name for name, value in values.items() if self._conflict(request, name, value)]
        kept = set(conflicts) & set(request.theirs or ())
        if refused := [name for name in conflicts if name not in kept]:
            flags = ",".join(refused)
            raise NameConflict(
                f"{' and '.join(refused)} changed here and on the cluster since it last travelled",
                hint=f"--in {flags} sends yours, --out {flags} takes the cluster's",
            )
        for name in request.gone:
            self._namespace.pop(name, None)
        self._travelled.forget(request.gone)
        taken = {name: value for name, value in values.items() if name not in kept}
        self._namespace.update(taken)
        self._travelled.note(request.cell_id, taken)
        self._wanted = {name for name in request.theirs or () if name not in taken and self._news(request, name)}

    def _news(self, request: CellRequest, name: str) -> bool:
        """Whether the client has not seen the value that name has here."""
        if name not in self._namespace:
            return False
        seen = self._travelled.since([name]).get(name) == request.based.get(name)
        return not seen or self._travelled.changed(name, self._namespace[name])

    def _conflict(self, request: CellRequest, name: str, value: Any) -> bool:
        if name not in self._namespace or name in request.ours:
            return False
        base = request.based.get(name)
        if base is None and not request.knows:
            return False
        mine = self._namespace[name]
        if self._travelled.since([name]).get(name) == base and base is not None and not self._travelled.changed(name, mine):
            return False
        print_ = fingerprint(mine)
        return print_ is None or print_ != fingerprint(value)

    def look(self, request: CellRequest) -> None:
        """Remember how things are just before the cell runs."""
        self._touched = {*request.outputs, *request.based} | {
            name for name, cell in self._travelled.since(self._travelled).items() if cell == request.cell_id
        }
        self._bindings = dict(self._namespace)
        never = [name for name in self._touched if name in self._bindings and name not in self._travelled]
        self._prints = {name: fingerprint(self._bindings[name]) for name in never}

    def changes(self, request: CellRequest, assigned: Collection[str]) -> Changes:
        """What is new, rebound, changed (under whatever name it travelled) or in ``assigned``; and what shares parts with that."""
        space, before = self._namespace, self._bindings
        rebound = {name for name, value in space.items() if before.get(name, _NOTHING) is not value and self._can_travel(name, request)}
        changed = {
            name for name in self._touched | rebound if name in space and (name in rebound or name in assigned or self._differs(name))
        }
        changed |= self._wanted & space.keys()
        along = set[str]()
        if changed:
            others = {name: space[name] for name in self._travelled if name in space and name not in changed}
            touched = [before[name] for name in self._touched if name in before]
            changed |= {name for name in kin(touched, others) if self._differs(name)}
            along = kin([space[name] for name in changed], {name: others[name] for name in others if name not in changed})
        if request.theirs is not None:
            changed, along = changed & set(request.theirs), set()
        deleted = tuple(sorted(name for name in {*self._travelled, *request.outputs} if name in before and name not in space))
        self._travelled.forget(deleted)
        self._bindings = {}
        return Changes({name: space[name] for name in sorted(changed | along)}, tuple(sorted(along)), deleted)

    def sent(self, cell_id: str, changes: Changes) -> None:
        """They are on their way to the notebook, or a word about them is."""
        self._travelled.note(cell_id, {name: value for name, value in changes.back.items() if name not in changes.along})

    def overview(self) -> dict[str, tuple[str, int]]:
        """Name → (type, bytes) of what cells have put here, for people; no modules."""
        values = {name: value for name, value in self._namespace.items() if not (name.startswith("_") or of_the_shell(name))}
        values = {name: value for name, value in values.items() if not isinstance(value, ModuleType)}
        sizes = measure(values)
        return {name: (type_name(values[name]), sizes[name]) for name in sorted(values)[:_MOST_SHOWN]}

    @staticmethod
    def _can_travel(name: str, request: CellRequest) -> bool:
        """A name that the cell's text does not show (``exec``, a function's ``global``) is expected only by who follows all names."""
        return name in request.outputs or (request.knows and not name.startswith("_") and not of_the_shell(name))

    def _differs(self, name: str) -> bool:
        value = self._namespace[name]
        if name in self._travelled:
            return self._travelled.changed(name, value)
        return self._prints.get(name) != fingerprint(value)

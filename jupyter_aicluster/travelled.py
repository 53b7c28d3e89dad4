"""What one side knows of the names that both sides have: in which cell run each last travelled, and how it was then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_aicluster.likeness import fingerprint, kin


@dataclass(frozen=True, slots=True)
class _Trip:
    cell_id: str
    fingerprint: bytes | None
    identity: int  # counts where there is no fingerprint


class Travelled:
    """Kernel and driver each have one. Fingerprints are compared only with those of the same side; the cell run is what both know."""

    def __init__(self) -> None:
        self._trips: dict[str, _Trip] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._trips

    def __iter__(self) -> Iterator[str]:
        return iter(self._trips)

    def note(self, cell_id: str, values: Mapping[str, Any]) -> None:
        """They have just travelled, in either direction."""
        for name, value in values.items():
            self._trips[name] = _Trip(cell_id, fingerprint(value), id(value))

    def own(self, names: Iterable[str], namespace: Mapping[str, Any], touched: Collection[str]) -> set[str]:
        """Of names that come back, those that the cell did not name and that were changed here meanwhile: they are left as they are.

        To be asked before the values are loaded, which may change what a class is made of.
        """
        return {
            name for name in names if name not in touched and name in self and name in namespace and self.changed(name, namespace[name])
        }

    def received(self, cell_id: str, values: Mapping[str, Any], along: Collection[str]) -> None:
        """They came back. ``along``: unchanged there, they came only to go on sharing parts with others."""
        for name, value in values.items():
            self.note(self._trips[name].cell_id if name in along and name in self else cell_id, {name: value})

    def forget(self, names: Iterable[str] | None = None) -> None:
        """None: all, because the other side has lost its variables."""
        for name in list(self._trips if names is None else names):
            self._trips.pop(name, None)

    def since(self, names: Iterable[str]) -> dict[str, str]:
        """Name → the cell run in which it last travelled."""
        return {name: self._trips[name].cell_id for name in names if name in self._trips}

    def changed(self, name: str, value: Any) -> bool:
        """Whether ``value`` is not what last travelled under that name; true of a name that never did."""
        trip = self._trips.get(name)
        if trip is None:
            return True
        if trip.fingerprint is None:
            return trip.identity != id(value)
        return trip.fingerprint != fingerprint(value)

    def to_send(self, wanted: Mapping[str, Any], namespace: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
        """Of ``wanted`` and all that both sides have and that shares parts with it: what the other side lacks or is in ``also``.

        What shares parts with that goes along unchanged, so that it still shares them on the other side.
        """
        known = {name: namespace[name] for name in self._trips if name in namespace and name not in wanted}
        near = {**wanted, **{name: known[name] for name in sorted(kin(wanted.values(), known))}}
        new = {name: value for name, value in near.items() if name in also or self.changed(name, value)}
        rest = {name: value for name, value in near.items() if name not in new}
        return new | {name: rest[name] for name in sorted(kin(new.values(), rest))}

    def copy(self) -> Travelled:
        made = Travelled()
        made._trips = dict(self._trips)
        return made

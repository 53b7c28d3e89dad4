"""What the ranks of a session have from its ``--spmd`` cells: it is not sent again over what each rank has made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jupyter_aicluster.fingerprints import fingerprints


class RankNames:
    """``start`` is the number of the processes that have them (0: there are none): another number, and nothing is there."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.names: set[str] = set()
        self._travelled: dict[str, tuple[object, int | None]] = {}  # name → the notebook's value since then, and its checksum

    def travelled(self, names: Iterable[str], namespace: Mapping[str, object]) -> None:
        """After a cell: the ranks have these, and the notebook has rank 0's or what it had sent."""
        values = {name: namespace[name] for name in names if name in namespace}
        prints = fingerprints(values)
        self.names.update(names)
        self._travelled |= {name: (value, prints[name]) for name, value in values.items()}

    def kept(self, namespace: Mapping[str, object]) -> frozenset[str]:
        """Names that the notebook has neither assigned nor changed since they travelled."""
        same = {name: value for name, (value, _) in self._travelled.items() if namespace.get(name) is value}
        prints = fingerprints(same)
        return frozenset(name for name in same if prints[name] == self._travelled[name][1])

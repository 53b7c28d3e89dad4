"""Names of a cell on their way: what it reads is packed before anything is submitted, what it assigned is put back."""

from __future__ import annotations

import builtins
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, ModuleType

from jupyter_aicluster import names, payload
from jupyter_aicluster.errors import NameMissing
from jupyter_aicluster.travelled import Travelled
from jupyter_aicluster.units import format_size

QUIET_BYTES = 64_000_000  # inputs up to here are not worth a word
_SHELL_NAMES = frozenset(
    {"In", "Out", "get_ipython", "display", "exit", "quit", "_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh"}
)


@dataclass(frozen=True, slots=True)
class Shipment:
    """Packed inputs (a private temporary file, the caller removes it), what the cluster has of them, and the names that may come back."""

    path: Path | None
    sha256: str | None
    size_bytes: int
    sent: tuple[str, ...]
    expected: tuple[str, ...]
    told: tuple[str, ...] = ()  # of ``sent``, what is worth a word: no modules
    results: tuple[str, ...] = ()  # of ``expected``, what a person waits for
    notice: str = ""
    values: Mapping[str, object] = field(default_factory=dict)  # what is sent
    based: Mapping[str, str] = field(default_factory=dict)  # name the cell may use → the cell run in which it travelled last
    gone: tuple[str, ...] = ()  # names that were here and there, and that were deleted here

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def prepare(
    code: str,
    namespace: Mapping[str, object],
    *,
    there: Collection[str] | None,
    kept: Collection[str] = (),
    travelled: Travelled,
    also: Collection[str] = (),
    only_back: Collection[str] | None = None,
    max_bytes: int,
    folder: Path,
) -> Shipment:
    """Find the inputs of ``code`` (Python, IPython syntax already transformed), and pack what the cluster lacks of them.

    ``there``: names that the cluster has from earlier cells, None where that is not known; ``kept``: those that ranks have and
    need not be sent. ``also``: sent whatever the cluster has.
    Raises `NameMissing`, `ShipError` or `UsageError` (syntax).
    """
    cell = names.analyse(code)
    for name in also:
        if name not in namespace:
            raise NameMissing(f"--in {name}: there is no variable {name!r} here", hint=f"assign {name} first, or leave it out")
    wanted = {name: namespace[name] for name in dict.fromkeys([*names.inputs(code, namespace), *also])}
    gone = tuple(sorted(name for name in travelled if name not in namespace))
    if there is not None:
        _no_stranger(cell.required, wanted, frozenset(there) - set(gone))
    wanted = {name: value for name, value in wanted.items() if name in also or name not in kept}
    going = travelled.to_send(wanted, namespace, also)
    values = {name: value for name, value in going.items() if not isinstance(value, payload.Stub)}
    expected = tuple(sorted(cell.writes | cell.changes if only_back is None else only_back))
    tools = {name for name in cell.changes - cell.writes if _imported(namespace.get(name))}
    results = tuple(sorted(cell.results - tools if only_back is None else only_back))
    based = travelled.since(name for name in {*wanted, *going, *cell.writes, *cell.changes, *expected} if name not in gone)
    shipment = Shipment(None, None, 0, (), expected, results=results, based=based, gone=gone)
    if not values:
        return shipment
    payload.ship_check(values, max_bytes)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, path = tempfile.mkstemp(prefix="inputs-", dir=folder)  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            packed = payload.pack(values, file)
    except BaseException:
        Path(path).unlink()
        raise
    return replace(
        shipment,
        path=Path(path),
        sha256=packed.sha256,
        size_bytes=packed.size_bytes,
        sent=packed.names,
        told=tuple(name for name in packed.names if not _imported(values[name])),
        notice=_notice(packed.size_bytes, values),
        values=values,
    )


def bring_back(
    path: Path, namespace: MutableMapping[str, object], leave: Collection[str] = (), source: Callable[[str], Path] | None = None
) -> dict[str, object]:
    """Put a cell's outputs, but for those to ``leave``, into the notebook; which they were.

    ``source`` gives the file of a `RemoteValue` by its key. The file must be from a proved hub.
    """
    with path.open("rb") as file:
        values = payload.unpack(file, tolerant=True)
    taken = {
        name: replace(value, source=source) if isinstance(value, payload.RemoteValue) else value
        for name, value in values.items()
        if name not in leave
    }
    namespace.update(taken)
    return taken


def worth_a_word(values: Mapping[str, object]) -> list[str]:
    """Names of what came back, without what nobody asks about."""
    return [name for name, value in values.items() if not _imported(value) and not isinstance(value, payload.Stub)]


def _imported(value: object) -> bool:
    """A module, a function or class of one, or a handle of Ray: it came back too, but nobody asks."""
    if type(value).__module__.partition(".")[0] == "ray":
        return True
    return isinstance(value, ModuleType) or (isinstance(value, type | FunctionType) and value.__module__ != "__main__")


def _notice(size_bytes: int, values: Mapping[str, object]) -> str:
    """One line about inputs large enough to notice; else empty."""
    if size_bytes <= QUIET_BYTES:
        return ""
    largest = sorted(payload.measure(values).items(), key=lambda item: -item[1])[:3]
    return f"sending {format_size(size_bytes)}: " + ", ".join(f"{name} {format_size(size)}" for name, size in largest)


def _no_stranger(required: Collection[str], values: Mapping[str, object], there: Collection[str]) -> None:
    for name in sorted(required):
        if name in there or name in _SHELL_NAMES or hasattr(builtins, name) or name.startswith(("_i", "__")):
            continue
        if name not in values:
            raise NameMissing(
                f"name {name!r} is not defined: neither here nor on the cluster", hint=f"assign {name} in this cell or before it"
            )
        if isinstance(values[name], payload.Stub):
            raise NameMissing(
                f"{name} is not here: {values[name]!r}", hint="run on the cluster that has it (--on NAME), or make it again in this cell"
            )

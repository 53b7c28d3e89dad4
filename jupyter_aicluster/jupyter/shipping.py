"""Names of a cell on their way: what it reads is packed before anything is submitted, what it assigned is put back."""

from __future__ import annotations

import builtins
import os
import tempfile
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

from jupyter_aicluster import names, payload
from jupyter_aicluster.errors import NameMissing
from jupyter_aicluster.units import format_size

QUIET_BYTES = 64_000_000  # inputs up to here are not worth a word
_SHELL_NAMES = frozenset(
    {"In", "Out", "get_ipython", "display", "exit", "quit", "_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh"}
)


@dataclass(frozen=True, slots=True)
class Shipment:
    """Packed inputs (a private temporary file, the caller removes it) and the names that may come back."""

    path: Path | None
    sha256: str | None
    size_bytes: int
    sent: tuple[str, ...]
    expected: tuple[str, ...]
    told: tuple[str, ...] = ()  # of ``sent``, what is worth a word: no modules
    results: tuple[str, ...] = ()  # of ``expected``, what a person waits for
    notice: str = ""

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def prepare(
    code: str,
    namespace: Mapping[str, object],
    *,
    there: Collection[str] | None,
    kept: Collection[str] = (),
    also: Collection[str] = (),
    only_back: Collection[str] | None = None,
    max_bytes: int,
    folder: Path,
) -> Shipment:
    """Find and pack the inputs of ``code`` (Python, IPython syntax already transformed).

    ``there``: names that the cluster has from earlier cells, None where that is not known; ``kept``: those that need not be sent.
    Raises `NameMissing`, `ShipError` or `UsageError` (syntax).
    """
    cell = names.analyse(code)
    for name in also:
        if name not in namespace:
            raise NameMissing(f"--in {name}: there is no variable {name!r} here", hint=f"assign {name} first, or leave it out")
    wanted = dict.fromkeys([*names.inputs(code, namespace), *also])
    values = {name: namespace[name] for name in wanted if name in also or name not in kept}
    if there is not None:
        _no_stranger(cell.required, values, there)
    values = {name: value for name, value in values.items() if not isinstance(value, payload.Stub)}
    expected = tuple(sorted(cell.writes | cell.changes if only_back is None else only_back))
    tools = {name for name in cell.changes - cell.writes if _imported(namespace.get(name))}
    results = tuple(sorted(cell.results - tools if only_back is None else only_back))
    if not values:
        return Shipment(None, None, 0, (), expected, results=results)
    payload.ship_check(values, max_bytes)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, path = tempfile.mkstemp(prefix="inputs-", dir=folder)  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            packed = payload.pack(values, file)
    except BaseException:
        Path(path).unlink()
        raise
    return Shipment(
        path=Path(path),
        sha256=packed.sha256,
        size_bytes=packed.size_bytes,
        sent=packed.names,
        expected=expected,
        told=tuple(name for name in packed.names if not _imported(values[name])),
        results=results,
        notice=_notice(packed.size_bytes, values),
    )


def bring_back(path: Path, namespace: MutableMapping[str, object]) -> tuple[list[str], list[payload.Stub]]:
    """Put a cell's outputs into the notebook: (names worth a word, stubs of what stayed). The file must be from a proved hub."""
    with path.open("rb") as file:
        values = payload.unpack(file, tolerant=True)
    namespace.update(values)
    stubs = [value for value in values.values() if isinstance(value, payload.Stub)]
    return [name for name, value in values.items() if not _imported(value) and not isinstance(value, payload.Stub)], stubs


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

"""Values of named variables on their way between notebook and cluster: one file, one pickle for all names.

One pickle, so that what two names share is still shared on the other side (an optimizer keeps its model). Layout: a magic
line, the header's length, a JSON header (Python version, names, sources, stubs, buffer sizes), the pickle, the large buffers.
A payload must only be unpacked from a peer that has proved itself: unpickling runs code.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any

from jupyter_aicluster.errors import CellFailed, ShipError
from jupyter_aicluster.pickling import Absent, NotebookPickler, NotebookUnpickler, add_sources
from jupyter_aicluster.sizes import measure, ship_check
from jupyter_aicluster.stubs import RemoteValue, Stub
from jupyter_aicluster.units import format_size
from jupyter_aicluster.unpicklable import advice, culprit, pickle_error, type_name

__all__ = ["Packed", "RemoteValue", "Stub", "measure", "pack", "pack_outputs", "ship_check", "unpack"]

_MAGIC = b"AICLUSTER-PAYLOAD-1\n"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written. ``names`` excludes stubs that were left out; ``stubs`` could not travel; no storage had room for ``stayed``."""

    size_bytes: int
    sha256: str
    names: tuple[str, ...]
    stubs: tuple[str, ...] = ()
    stayed: tuple[str, ...] = ()


def pack(values: Mapping[str, Any], to: IO[bytes]) -> Packed:
    """Write the inputs of a cell. A `Stub` is left out: the cluster has the original.

    Raises `ShipError` that names the variable, and the part of it, that cannot be pickled.
    """
    values = {name: value for name, value in values.items() if not isinstance(value, Stub)}
    try:
        pickled = _Pickled.of(values)
    except Exception as error:  # boundary: pickling runs user code, which may raise anything
        raise _ship_error(values, error) from error
    return pickled.write(to)


def pack_outputs(
    values: Mapping[str, Any], to: IO[bytes], max_bytes: int | None = None, store: Callable[[str, Any], str] | None = None
) -> Packed:
    """Write what a cell has assigned or changed. What cannot travel becomes a `Stub`; only writing to ``to`` can fail.

    Above ``max_bytes`` the largest variables stay behind until the rest fits: each becomes a `RemoteValue` if ``store`` puts it
    somewhere (and says under which key), else a `Stub` too.
    """
    going, stubs, stayed = dict(values), list[Stub](), list[str]()
    if max_bytes is not None:
        sizes = measure(going)
        while going and sum(sizes[name] for name in going) > max_bytes:
            largest = max(going, key=sizes.__getitem__)
            value, why = going.pop(largest), f"It is about {format_size(sizes[largest])}; up to {format_size(max_bytes)} come back at once."
            if (error := pickle_error(value)) is not None:
                stubs.append(_stub(largest, value, error))
                continue
            try:
                key = store(largest, value) if store is not None else ""
            except OSError as full:
                why, key = f"{why} There is no room for it in the cluster's storage ({full}).", ""
                stayed.append(largest)
            made = RemoteValue(largest, type_name(value), why, sizes[largest], key) if key else Stub(largest, type_name(value), why)
            stubs.append(made)
    try:
        pickled = _Pickled.of(going)
    except Exception:  # noqa: BLE001 - boundary, as in pack: find out which variables are to blame and send the others
        for name in list(going):
            error = pickle_error(going[name])
            if error is not None:
                stubs.append(_stub(name, going.pop(name), error))
        pickled = _Pickled.of(going)
    pickled.stubs = stubs
    return replace(pickled.write(to), stayed=tuple(stayed))


def unpack(source: IO[bytes], tolerant: bool = False) -> dict[str, Any]:
    """Name → value. With ``tolerant`` (outputs) whatever cannot be loaded here becomes a `Stub`; else it raises `CellFailed`."""
    if source.read(len(_MAGIC)) != _MAGIC:
        raise CellFailed("these are not values of a cell", hint="the file is damaged or was written by another version")
    header = json.loads(_exactly(source, int.from_bytes(_exactly(source, 8), "big")))
    stubs: dict[str, Any] = {raw["name"]: RemoteValue(**raw) if "key" in raw else Stub(**raw) for raw in header["stubs"]}
    if header["python"] != _PYTHON:
        what = f"the values were made by Python {header['python']} and this is Python {_PYTHON}"
        if not tolerant:
            raise CellFailed(what, hint="use the same Python version in the notebook and on the cluster")
        return stubs | {name: Stub(name, "value", what) for name in header["names"]}
    add_sources(header["sources"])
    pickled = _exactly(source, header["pickle"])
    buffers = [_exactly(source, size) for size in header["buffers"]]
    try:
        values = NotebookUnpickler(io.BytesIO(pickled), buffers, tolerant).load()
    except Exception as error:  # boundary: unpickling runs user code, which may raise anything
        if tolerant:
            return stubs | {name: Stub(name, "value", f"It could not be loaded here: {error}") for name in header["names"]}
        raise CellFailed(
            "the inputs of the cell could not be loaded on the cluster",
            evidence=f"{type(error).__name__}: {error}",
            hint="install the missing package there (--pip), or make the value in the cell",
        ) from error
    for name, value in values.items():
        stubs[name] = Stub(name, value.type_name, f"It could not be loaded here: {value.why}.") if isinstance(value, Absent) else value
    return stubs


@dataclass(slots=True)
class _Pickled:
    names: tuple[str, ...]
    pickle: memoryview
    buffers: list[memoryview]
    sources: dict[str, str]
    stubs: list[Stub] = field(default_factory=list)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> _Pickled:
        file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        pickler = NotebookPickler(file, buffer_callback=buffers.append)
        pickler.dump(dict(values))
        return cls(tuple(values), file.getbuffer(), [buffer.raw() for buffer in buffers], pickler.sources)

    def write(self, to: IO[bytes]) -> Packed:
        header = json.dumps(
            {
                "python": _PYTHON,
                "names": self.names,
                "sources": self.sources,
                "stubs": [_stub_json(stub) for stub in self.stubs],
                "pickle": self.pickle.nbytes,
                "buffers": [buffer.nbytes for buffer in self.buffers],
            }
        ).encode()
        digest, size = hashlib.sha256(), 0
        parts: list[bytes | memoryview] = [_MAGIC, len(header).to_bytes(8, "big"), header, self.pickle, *self.buffers]
        for part in parts:
            to.write(part)
            digest.update(part)
            size += memoryview(part).nbytes
        return Packed(size, digest.hexdigest(), self.names, tuple(stub.name for stub in self.stubs))


def _exactly(source: IO[bytes], size: int) -> bytearray:
    """``size`` bytes in memory that arrays may use as their own."""
    data = bytearray(source.read(size))
    if len(data) != size:
        raise CellFailed("the values of the cell are cut short", hint="run the cell again")
    return data


def _ship_error(values: Mapping[str, Any], error: Exception) -> ShipError:
    for name, value in values.items():
        alone = pickle_error(value)
        if alone is not None:
            path, part, inner = culprit(name, value, alone)
            what, remedy = advice(part, inner)
            said = f"{type(inner).__name__}: {inner}"
            return ShipError(f"{name} cannot travel to the cluster: {path} is {what}", evidence=said, hint=remedy)
    said = f"{type(error).__name__}: {error}"
    return ShipError("the inputs of this cell cannot travel together", evidence=said, hint="send fewer names: --in a,b")


def _stub_json(stub: Stub) -> dict[str, Any]:
    said: dict[str, Any] = {"name": stub.name, "type_name": stub.type_name, "why": stub.why}
    return said | ({"size_bytes": stub.size_bytes, "key": stub.key} if isinstance(stub, RemoteValue) else {})


def _stub(name: str, value: Any, error: Exception) -> Stub:
    path, part, inner = culprit(name, value, error)
    what, remedy = advice(part, inner)
    return Stub(name, type_name(value), f"It cannot travel: {path} is {what}; {remedy}.")

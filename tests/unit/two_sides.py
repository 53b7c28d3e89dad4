"""A kernel's namespace and a driver's, and cells that go from one to the other as they do in life, without processes."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from jupyter_aicluster import payload
from jupyter_aicluster.agent.namespace import Names
from jupyter_aicluster.errors import AIClusterError
from jupyter_aicluster.jupyter.shipping import bring_back, prepare
from jupyter_aicluster.names import analyse
from jupyter_aicluster.pickling import cloudpickle
from jupyter_aicluster.protocol import CellRequest
from jupyter_aicluster.travelled import Travelled


class TwoSides:
    """``here`` is the notebook's namespace, ``there`` the driver's. ``sent`` and ``back``: what travelled with the latest cell."""

    def __init__(self, folder: Path, max_output_bytes: int = 256_000_000) -> None:
        self.folder, self.max_output_bytes = folder, max_output_bytes
        self._here, self._there = _Side(), _Side()
        self.here, self.there = self._here.main.__dict__, self._there.main.__dict__
        self.travelled, self.names, self.known = Travelled(), Names(self.there), set[str]()
        self.sent: set[str] = set()
        self.back: set[str] = set()
        self.size = 0
        self.raised: BaseException | None = None
        self._count = 0

    def local(self, code: str) -> None:
        """An ordinary cell."""
        with self._here.now():
            self.raised = _run(code, self.here)

    def cell(self, code: str, also: tuple[str, ...] = (), out: tuple[str, ...] | None = None) -> None:
        """A ``%%gpujob`` cell. Raises what `prepare` and `Names.admit` raise; what the code raises is in ``raised``."""
        self._count += 1
        cell_id = f"c{self._count}"
        with self._here.now():
            shipment = prepare(
                code,
                self.here,
                there=self.known,
                travelled=self.travelled,
                also=also,
                only_back=out,
                max_bytes=1 << 40,
                folder=self.folder,
            )
        before = self.travelled.copy()
        with self._here.now():
            self.travelled.note(cell_id, shipment.values)
        self.travelled.forget(shipment.gone)
        request = CellRequest.from_json(
            CellRequest(
                cell_id,
                "s",
                code,
                outputs=shipment.expected,
                based=shipment.based,
                knows=True,
                ours=also,
                theirs=out,
                gone=shipment.gone,
            ).to_json()
        )
        self.sent, self.size = set(shipment.sent), shipment.size_bytes
        with self._there.now():
            values: dict[str, Any] = {}
            if shipment.path is not None:
                with shipment.path.open("rb") as file:
                    values = payload.unpack(file)
                shipment.remove()
            try:
                self.names.admit(request, values)
            except AIClusterError:
                self.travelled = before
                raise
            self.names.look(request)
            self.raised = _run(code, self.there)
            changes = self.names.changes(request, () if self.raised else analyse(code).always)
            buffer = io.BytesIO()
            payload.pack_outputs(changes.back, buffer, self.max_output_bytes, self._store)
            self.names.sent(cell_id, changes)
        self.known |= self.sent | set(shipment.expected)
        self.back = set(changes.back)
        path = self.folder / cell_id
        path.write_bytes(buffer.getvalue())
        with self._here.now():
            self.travelled.forget(changes.deleted)
            for name in changes.deleted:
                self.here.pop(name, None)
            mine = self.travelled.own(changes.back, self.here, {*request.outputs, *request.based})
            back = bring_back(path, self.here, mine, lambda key: self.folder / key)
            self.travelled.received(cell_id, back, changes.along)

    def _store(self, name: str, value: Any) -> str:
        with (self.folder / f"large-{name}").open("wb") as file:
            payload.pack_outputs({name: value}, file)
        return f"large-{name}"


class _Side:
    """What a process has only one of."""

    def __init__(self) -> None:
        self.main = ModuleType("__main__")
        self.classes: dict[str, Any] = {
            "_DYNAMIC_CLASS_TRACKER_BY_CLASS": WeakKeyDictionary(),
            "_DYNAMIC_CLASS_TRACKER_BY_ID": WeakValueDictionary(),
        }

    @contextmanager
    def now(self) -> Iterator[None]:
        rules: dict[str, Any] = sys.modules[cloudpickle().Pickler.__module__].__dict__
        before = sys.modules["__main__"], {name: rules[name] for name in self.classes}
        sys.modules["__main__"] = self.main
        rules.update(self.classes)
        try:
            yield
        finally:
            sys.modules["__main__"] = before[0]
            rules.update(before[1])


def _run(code: str, namespace: dict[str, Any]) -> BaseException | None:
    try:
        exec(compile(code, "<cell>", "exec"), namespace)
    except Exception as error:  # noqa: BLE001 - the cell's own
        traceback.clear_frames(error.__traceback__)
        return error
    return None

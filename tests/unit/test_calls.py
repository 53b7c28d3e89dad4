"""Python calls as cells: what is sent does what the call says, and its end is a value or an exception."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_aicluster import payload
from jupyter_aicluster.calls import RESULT, Call, pack_call, pack_map
from jupyter_aicluster.cells import CellRun
from jupyter_aicluster.cluster import Cluster
from jupyter_aicluster.errors import CellFailed, ShipError
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest


def area(width: int, *, height: int = 1) -> int:
    if width < 0:
        raise ValueError("too thin")
    return width * height


def execute(request: CellRequest, path: Path) -> dict[str, Any]:
    """As a driver would: the inputs into a namespace, then the code."""
    assert request.inputs == hashlib.sha256(path.read_bytes()).hexdigest()
    with path.open("rb") as file:
        namespace: dict[str, Any] = dict(payload.unpack(file))
    exec(compile(request.code, request.filename, "exec"), namespace)
    return {name: value for name, value in namespace.items() if not name.startswith("__")}


def test_a_call_leaves_its_result_and_nothing_else() -> None:
    request, path = pack_call(area, (6,), {"height": 7})
    assert execute(request, path) == {RESULT: 42}
    assert (request.outputs, request.label) == ((RESULT,), "area()")


def test_a_call_that_raises_leaves_nothing() -> None:
    request, path = pack_call(area, (-1,), {})
    with path.open("rb") as file:
        namespace: dict[str, Any] = dict(payload.unpack(file))
    with pytest.raises(ValueError, match="too thin"):
        exec(request.code, namespace)
    assert not {name for name in namespace if name.startswith("_aicluster")}


def test_a_map_is_one_task_an_item_with_so_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of Ray: the calls only; whether Ray does it is tested on real Ray."""
    asked: list[dict[str, Any]] = []

    def remote(**options: Any) -> Any:
        asked.append(options)
        return lambda fn: SimpleNamespace(remote=fn)

    ray = ModuleType("ray")
    vars(ray).update(remote=remote, get=list)
    monkeypatch.setitem(sys.modules, "ray", ray)
    request, path = pack_map(area, iter([1, 2, 3]), 0.5)
    left = execute(request, path)
    assert left[RESULT] == [1, 2, 3]
    assert asked == [{"num_gpus": 0.5}]
    assert not set(left) & {"_aicluster_fn", "_aicluster_items", "_aicluster_gpus"}


class Holder:
    """A cluster as far as a call needs one."""

    def __init__(self, value: Path) -> None:
        self._value = value
        self.interrupted: list[str] = []

    def value(self, cell_id: str) -> Path:
        return self._value

    def interrupt(self, cell_id: str) -> None:
        self.interrupted.append(cell_id)


def call(tmp_path: Path, report: CellReport | None) -> tuple[Call, Holder]:
    with (tmp_path / "value").open("wb") as file:
        payload.pack({RESULT: 42}, file)
    run, holder = CellRun("c1"), Holder(tmp_path / "value")
    if report is not None:
        run._take(report, cast(Any, None))
    return Call(cast(Cluster, holder), run), holder


def test_a_result_waits_or_times_out_and_can_be_cancelled(tmp_path: Path) -> None:
    waiting, holder = call(tmp_path, None)
    assert not waiting.done
    with pytest.raises(TimeoutError, match="c1 still runs"):
        waiting.result(timeout_s=0.01)
    waiting.cancel()
    assert holder.interrupted == ["c1"]
    done, _ = call(tmp_path, CellReport("c1", CellPhase.DONE))
    assert done.done
    assert done.result() == 42


def test_an_exception_there_is_cell_failed_here_with_its_traceback(tmp_path: Path) -> None:
    error = {"ename": "ValueError", "evalue": "too thin", "traceback": ["File <area>", "ValueError: too thin"]}
    failed, _ = call(tmp_path, CellReport("c1", CellPhase.FAILED, error=error))
    with pytest.raises(CellFailed, match="ValueError: too thin") as caught:
        failed.result()
    assert "File <area>" in caught.value.evidence
    lost, _ = call(tmp_path, CellReport("c1", CellPhase.LOST, cause="node 1 left"))
    with pytest.raises(CellFailed, match="lost: node 1 left"):
        lost.result()


def test_what_cannot_travel_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ShipError):
        pack_call(len, (threading.Lock(),), {})
    assert list(tmp_path.glob("aicluster-*")) == []


@pytest.fixture(autouse=True)
def packed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are packed into a folder that goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

"""Python calls on a cluster: a function and its arguments as a cell run, its result or exception as a value."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_aicluster import payload
from jupyter_aicluster.cells import CellRun, new_cell_id
from jupyter_aicluster.errors import CellFailed
from jupyter_aicluster.protocol import CellPhase, CellRequest

if TYPE_CHECKING:
    from jupyter_aicluster.cluster import Cluster

RESULT = "_aicluster_result"
_CALL = f"""try:
    {RESULT} = _aicluster_fn(*_aicluster_args, **_aicluster_kwargs)
finally:
    del _aicluster_fn, _aicluster_args, _aicluster_kwargs
"""
_MAP = f"""import ray as _aicluster_ray
try:
    _aicluster_task = _aicluster_ray.remote(num_gpus=_aicluster_gpus)(_aicluster_fn)
    {RESULT} = _aicluster_ray.get([_aicluster_task.remote(item) for item in _aicluster_items])
finally:
    del _aicluster_fn, _aicluster_items, _aicluster_gpus
"""


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[CellRequest, Path]:
    return _pack(_CALL, {"_aicluster_fn": fn, "_aicluster_args": args, "_aicluster_kwargs": dict(kwargs)}, fn)


def pack_spmd(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], per: str) -> tuple[CellRequest, Path]:
    request, path = pack_call(fn, args, kwargs)
    return replace(request, outputs=(), spmd=per, gather=(RESULT,)), path


def pack_map(fn: Callable[[Any], Any], items: Iterable[Any], gpus: float) -> tuple[CellRequest, Path]:
    return _pack(_MAP, {"_aicluster_fn": fn, "_aicluster_items": list(items), "_aicluster_gpus": gpus}, fn)


def _pack(code: str, values: Mapping[str, Any], fn: Callable[..., Any]) -> tuple[CellRequest, Path]:
    folder = Path(tempfile.mkdtemp(prefix="aicluster-"))
    path = folder / "inputs"
    try:
        with path.open("wb") as file:
            packed = payload.pack(values, file)
    except BaseException:  # what cannot travel leaves nothing behind, nor does Ctrl-C
        shutil.rmtree(folder, ignore_errors=True)
        raise
    label = getattr(fn, "__name__", type(fn).__name__)
    request = CellRequest(
        cell_id=new_cell_id(),
        session="main",
        code=code,
        filename=f"<{label}>",
        inputs=packed.sha256,
        outputs=(RESULT,),
        theirs=(RESULT,),
        after_success_s=1800.0,
        label=f"{label}()",
    )
    return request, path


class Call:
    """A call that runs on a cluster."""

    def __init__(self, cluster: Cluster, run: CellRun) -> None:
        self._cluster, self._run = cluster, run

    @property
    def done(self) -> bool:
        return self._run.over

    def cancel(self) -> None:
        self._cluster.interrupt(self._run.cell_id)

    def result(self, timeout_s: float | None = None) -> Any:
        """What the function returned. Raises `TimeoutError`; `CellFailed` with the remote traceback where it raised or was lost."""
        if not self._run.wait(timeout_s):
            raise TimeoutError(f"{self._run.cell_id} still runs")
        report = self._run.report
        assert report is not None
        if report.phase != CellPhase.DONE:
            error = report.error or {}
            what = f"{error.get('ename', report.phase)}: {error.get('evalue', report.cause)}"
            raise CellFailed(what, evidence="\n".join(error.get("traceback", ())), hint="the traceback above is the cluster's")
        if report.ranks:
            return self._cluster.gathered(report)[RESULT]
        with self._cluster.value(self._run.cell_id).open("rb") as file:
            return payload.unpack(file)[RESULT]

"""The contract suite on the local backend: real supervisors, whose hub and node programs do nothing but wait for their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jupyter_aicluster import procs
from jupyter_aicluster.backends.base import Backend
from jupyter_aicluster.backends.local.backend import LocalBackend, LocalOptions
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.testing.contract import BackendContract

SUPERVISOR = Path(__file__).parents[1] / "testbed" / "local_supervisor.py"
OPTIONS = LocalOptions(gpus=4, kind="simulated", supervisor=(str(SUPERVISOR),))


class TestLocal(BackendContract):
    @pytest.fixture
    async def runs(self, tmp_path: Path) -> AsyncIterator[Path]:
        runs = tmp_path / "runs"
        runs.mkdir()
        yield runs
        for uid in [run.name for run in runs.iterdir()]:
            procs.kill_marked(uid)
        backend = LocalBackend(tmp_path, OPTIONS)
        for handle in await backend.find():
            await backend.cancel(handle)
        while await backend.find():
            await asyncio.sleep(0.02)

    @pytest.fixture
    def backend(self, runs: Path) -> Backend:
        return LocalBackend(runs.parent, OPTIONS)

    @pytest.fixture
    def another(self, runs: Path) -> Backend:
        return LocalBackend(runs.parent, OPTIONS)

    def spoil(self, backend: Backend, handle: Handle, run: RunDir) -> None:
        ledger = next((run.path.parent.parent / "ledger").glob("*/requests"))
        (ledger / f"{handle.uid}.json").unlink()
        run.end.write_text('{"ending": ["from", "a", "later", "version"]}')

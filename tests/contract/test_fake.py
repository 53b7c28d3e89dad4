"""The contract suite on the fake backend, and the faults that only it can show."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_aicluster.backends.base import Backend
from jupyter_aicluster.errors import SubmitError
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.state import Observation, Word
from jupyter_aicluster.testing.contract import BackendContract
from jupyter_aicluster.testing.fake import FakeBackend, FakeScheduler


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(total=4)


class TestFake(BackendContract):
    POLL_S = 0.0

    @pytest.fixture
    def backend(self, scheduler: FakeScheduler) -> Backend:
        return FakeBackend(scheduler)

    @pytest.fixture
    def another(self, scheduler: FakeScheduler) -> Backend:
        return FakeBackend(scheduler)

    def spoil(self, backend: Backend, handle: Handle, run: RunDir) -> None:
        assert isinstance(backend, FakeBackend)
        backend.scheduler.unreadable.add(handle.uid)

    async def test_it_says_what_it_is_told(self, backend: FakeBackend, runs: Path) -> None:
        handle, _ = await self.submit(backend, runs, 1)
        backend.scheduler.say(handle, Observation(Word.UNKNOWN), Observation(Word.READY, attempt=2))
        seen = [await self.look(backend, handle) for _ in range(3)]
        assert [(one.word, one.attempt) for one in seen] == [(Word.UNKNOWN, 1), (Word.READY, 2), (Word.GRANTED, 1)]

    async def test_faults_happen_once(self, backend: FakeBackend, runs: Path) -> None:
        backend.scheduler.faults |= {"submit": SubmitError("refused", hint="ask"), "observe": SubmitError("away", hint="wait")}
        with pytest.raises(SubmitError):
            await self.submit(backend, runs, 1)
        handle, _ = await self.submit(backend, runs, 1)
        assert [(await self.look(backend, handle)).word for _ in range(3)] == [Word.UNKNOWN, Word.QUEUED, Word.GRANTED]

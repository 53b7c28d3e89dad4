"""What every backend must do. Subclass `BackendContract` in a test module and give it its fixtures; nothing here knows a scheduler.

Works with pytest-asyncio in auto mode. A cluster is started with a run folder as the client makes it, so a backend that starts
real agents starts them; the suite itself never talks to a hub.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from jupyter_aicluster.backends.base import Backend
from jupyter_aicluster.errors import HubUnreachable
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.plan import Fit
from jupyter_aicluster.protocol import Submission
from jupyter_aicluster.rundir import RunDir, write_json
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Ending, Observation, Status, Target, Word, transition

_LIFE = (Word.UNKNOWN, Word.ABSENT, Word.QUEUED, Word.GRANTED, Word.READY, Word.RELEASING, Word.ENDED)


class BackendContract:
    """Needs the fixtures ``backend`` (at least 4 free GPUs), ``another`` (a second instance that shares no memory with it) and ``runs``."""

    TIMEOUT_S = 30.0
    POLL_S = 0.02
    STRICT_FIFO = True  # False where the scheduler may backfill

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def another(self) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def runs(self, tmp_path: Path) -> Path:
        """Where the run folders lie."""
        return tmp_path / "runs"

    def spoil(self, backend: Backend, handle: Handle, run: RunDir) -> None:
        """Make the answer about this one cluster unreadable, if that can happen."""
        pytest.skip("nothing about a single cluster can be unreadable here")

    # ---- helpers

    async def submit(self, backend: Backend, runs: Path, gpus: int) -> tuple[Handle, RunDir]:
        spec = ClusterSpec(gpus=gpus)
        plan = backend.plan(spec, await backend.inventory())
        handle = Handle.new(backend.name)
        run = RunDir(runs / handle.uid)
        run.create()
        submission = Submission(
            uid=handle.uid,
            name=handle.name,
            backend=backend.name,
            spec=spec.to_json(),
            nodes=plan.nodes,
            gpus_per_node=plan.gpus_per_node,
            time_s=600,
            simulated=plan.simulated,
        )
        write_json(run.submission, submission.to_json())
        await backend.submit(plan, handle, run)
        return handle, run

    async def look(self, backend: Backend, handle: Handle) -> Observation:
        return (await backend.observe([handle]))[handle]

    async def until(self, backend: Backend, handle: Handle, word: Word) -> list[Observation]:
        """Everything observed up to and including ``word``."""
        seen: list[Observation] = []
        deadline = time.monotonic() + self.TIMEOUT_S
        while not seen or seen[-1].word is not word:
            assert time.monotonic() < deadline, f"never {word}: {seen[-1:]}"
            seen.append(await self.look(backend, handle))
            await asyncio.sleep(self.POLL_S)
        return seen

    # ---- before anything is submitted

    async def test_is_available_or_says_what_is_missing(self, backend: Backend) -> None:
        availability = await backend.available()
        assert availability.ok or (availability.reason and availability.hint)

    async def test_inventory_adds_up(self, backend: Backend) -> None:
        inventory = await backend.inventory()
        assert inventory.total >= 4
        assert all(pool.free is None or 0 <= pool.free <= pool.total for pool in inventory.pools)

    async def test_a_plan_shows_what_will_be_sent(self, backend: Backend) -> None:
        inventory = await backend.inventory()
        spec = ClusterSpec(gpus=4, nodes=2)
        plan = backend.plan(spec, inventory)
        assert (plan.backend, plan.nodes, plan.gpus_per_node, plan.spec) == (backend.name, 2, 2, spec)
        assert plan.text.strip()
        assert plan.because
        assert plan.fit in (Fit.NOW, Fit.UNKNOWN)
        assert backend.plan(spec, inventory) == plan

    async def test_more_gpus_than_there_are_never_fit(self, backend: Backend) -> None:
        inventory = await backend.inventory()
        plan = backend.plan(ClusterSpec(gpus=inventory.total + 8), inventory)
        assert plan.fit is Fit.NEVER
        assert str(inventory.total) in plan.because

    async def test_a_cluster_nobody_submitted_is_absent(self, backend: Backend) -> None:
        handle = Handle.new(backend.name)
        assert (await self.look(backend, handle)).word is Word.ABSENT
        assert handle not in await backend.find()
        with pytest.raises(HubUnreachable):
            await backend.connect(handle)

    async def test_observing_nothing_is_nothing(self, backend: Backend) -> None:
        assert dict(await backend.observe([])) == {}

    # ---- a life

    async def test_a_life_goes_one_way(self, backend: Backend, runs: Path) -> None:
        handle, _ = await self.submit(backend, runs, 2)
        seen = await self.until(backend, handle, Word.GRANTED)
        await backend.cancel(handle)
        seen += await self.until(backend, handle, Word.ENDED)
        order = [_LIFE.index(observation.word) for observation in seen if observation.word is not Word.UNKNOWN]
        assert order == sorted(order)
        end = seen[-1].end
        assert end is not None
        assert end.ending is Ending.STOPPED
        status = Status()
        for observation in seen:
            status = transition(status, Target.UP, observation)
        assert status.ended

    async def test_granted_gpus_are_not_free(self, backend: Backend, runs: Path) -> None:
        before = (await backend.inventory()).free
        handle, _ = await self.submit(backend, runs, 3)
        await self.until(backend, handle, Word.GRANTED)
        during = (await backend.inventory()).free
        await backend.cancel(handle)
        await self.until(backend, handle, Word.ENDED)
        after = (await backend.inventory()).free
        if before is not None:
            assert (during, after) == (before - 3, before)

    async def test_all_or_nothing(self, backend: Backend, runs: Path) -> None:
        total = (await backend.inventory()).total
        first, _ = await self.submit(backend, runs, total - 1)
        await self.until(backend, first, Word.GRANTED)
        second, _ = await self.submit(backend, runs, 2)
        waiting = (await self.until(backend, second, Word.QUEUED))[-1]
        assert waiting.reason, "a waiting cluster has a reason"
        assert (await self.look(backend, second)).word is Word.QUEUED, "one free GPU is not two"
        await backend.cancel(first)
        await self.until(backend, second, Word.GRANTED)
        assert (await self.look(backend, first)).word is Word.ENDED, "GPUs were granted before they were free"

    async def test_nobody_passes_the_head_of_the_queue(self, backend: Backend, runs: Path) -> None:
        if not self.STRICT_FIFO:
            pytest.skip("this scheduler may backfill")
        total = (await backend.inventory()).total
        clusters = [(await self.submit(backend, runs, gpus))[0] for gpus in (total - 1, total, 1)]
        await self.until(backend, clusters[0], Word.GRANTED)
        seen = await backend.observe(clusters)
        assert [seen[handle].word for handle in clusters] == [Word.GRANTED, Word.QUEUED, Word.QUEUED]
        assert [seen[handle].position for handle in clusters] == [None, 1, 2]
        for ahead, then in pairwise(clusters):
            await backend.cancel(ahead)
            await self.until(backend, then, Word.GRANTED)

    # ---- cancel

    async def test_cancel_takes_a_waiting_cluster_out_of_the_queue(self, backend: Backend, runs: Path) -> None:
        total = (await backend.inventory()).total
        first, _ = await self.submit(backend, runs, total)
        await self.until(backend, first, Word.GRANTED)
        second, _ = await self.submit(backend, runs, 1)
        await self.until(backend, second, Word.QUEUED)
        await backend.cancel(second)
        await self.until(backend, second, Word.ENDED)
        assert (await self.look(backend, first)).word is Word.GRANTED, "another cluster was hit"

    async def test_cancel_right_after_submit(self, backend: Backend, runs: Path) -> None:
        handle, _ = await self.submit(backend, runs, 1)
        await backend.cancel(handle)
        await self.until(backend, handle, Word.ENDED)

    async def test_cancel_is_idempotent(self, backend: Backend, runs: Path) -> None:
        await backend.cancel(Handle.new(backend.name))
        handle, _ = await self.submit(backend, runs, 1)
        await self.until(backend, handle, Word.GRANTED)
        await asyncio.gather(*(backend.cancel(handle) for _ in range(3)))
        ended = (await self.until(backend, handle, Word.ENDED))[-1]
        await backend.cancel(handle)
        assert await self.look(backend, handle) == ended, "the end changed after it"

    # ---- from other processes, and when things are unreadable

    async def test_clusters_are_found_without_records(self, backend: Backend, another: Backend, runs: Path) -> None:
        handle, _ = await self.submit(backend, runs, 1)
        assert handle in await another.find()
        await self.until(another, handle, Word.GRANTED)
        await another.cancel(handle)
        await self.until(another, handle, Word.ENDED)
        await self.until(backend, handle, Word.ENDED)
        assert handle not in await another.find()

    async def test_no_hub_yet_is_unreachable_with_a_hint(self, backend: Backend, runs: Path) -> None:
        handle, _ = await self.submit(backend, runs, 1)
        with pytest.raises(HubUnreachable) as caught:
            await backend.connect(handle)
        assert caught.value.hint

    async def test_one_unreadable_cluster_hides_no_other(self, backend: Backend, runs: Path) -> None:
        (bad, run), (good, _) = [await self.submit(backend, runs, 1) for _ in range(2)]
        for handle in (bad, good):
            await self.until(backend, handle, Word.GRANTED)
        self.spoil(backend, bad, run)
        seen = await backend.observe([bad, good, Handle.new(backend.name)])
        assert sorted(observation.word for observation in seen.values()) == [Word.ABSENT, Word.GRANTED, Word.UNKNOWN]
        assert seen[good].word is Word.GRANTED

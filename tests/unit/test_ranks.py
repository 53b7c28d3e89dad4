"""Ranks of ``--spmd`` cells as the hub's brain decides about them: all begin together, and end together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from jupyter_aicluster.agent.brain import MOST_STILLBORN
from jupyter_aicluster.agent.ranks import STOP_S, Ranks, by_rank
from jupyter_aicluster.events import Kind
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest
from jupyter_aicluster.state import State
from tests.unit.test_brain import World

CELL = CellRequest("c1", "main", "train()", after_success_s=600.0, after_failure_s=600.0, spmd="node")
JOB = CellRequest("c1", "main", "train()", after_success_s=0.0, after_failure_s=600.0, spmd="node", gather=("loss",))


class Gang:
    """A world of two nodes with one rank each, whose processes do what the orders say."""

    def __init__(self, cell: CellRequest = CELL, retries: int = 0) -> None:
        self.world = World(nodes=2, retries=retries, cell=cell).ready()
        self.brain = self.world.brain
        self.batches = 0
        self.world.driver_ready()

    def starts(self) -> list[int]:
        """Of the ranks' processes, as their nodes are told."""
        found = []
        for k in range(2):
            orders = self.world.beat(k)
            assert set(orders.ranks) <= set(orders.drivers)
            found += [orders.drivers[name] for name in orders.ranks]
        return found

    def wanted(self, rank: int) -> tuple[str, str, int] | None:
        return self.brain.wanted_order(f"main.rank-{rank}")

    def say(self, rank: int, *events: tuple[str, Mapping[str, Any]]) -> bool:
        self.batches += 1
        start = self.brain.ranks.groups["main"].start
        return self.brain.driver_events(f"main.rank-{rank}", start, self.batches, [{"k": kind, "d": data} for kind, data in events])

    def is_(self, rank: int, phase: CellPhase, **more: Any) -> None:
        assert self.say(rank, (Kind.CELL, CellReport("c1", phase, **more).to_json()))

    def whole(self) -> Gang:
        self.starts()
        assert self.world.driver(("driver", {"ready": True, "holds": True}))
        for rank in (0, 1):
            assert self.say(rank, ("driver", {"ready": True}))
        return self

    def running(self) -> Gang:
        self.whole()
        for rank in (0, 1):
            self.is_(rank, CellPhase.RUNNING)
        return self

    def died(self, rank: int, **how: int) -> None:
        start = self.brain.ranks.groups["main"].start
        self.world.beat(rank, drivers={f"main.rank-{rank}": {"start": start, "state": "exited", **how}})

    @property
    def report(self) -> CellReport:
        return self.brain.reports["c1"]

    def notices(self) -> list[str]:
        return [str(data["text"]) for data in self.world.heard(Kind.NOTICE)]


def test_each_node_is_told_of_its_ranks_and_what_frameworks_expect() -> None:
    ranks = Ranks(nodes=2, gpus_per_node=4)
    group = ranks.form("s", "gpu")
    assert [(rank.number, rank.node, rank.local) for rank in group.ranks[3:6]] == [(3, 0, 3), (4, 1, 0), (5, 1, 1)]
    env = ranks.environment(group, group.ranks[5], "10.0.0.1:20010", "10.0.0.1:20011")
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["NODE_RANK"]) == ("5", "1", "8", "4", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["JAX_COORDINATOR_ADDRESS"]) == ("10.0.0.1", "20010", "10.0.0.1:20011")
    assert [rank.name for _, rank in ranks.all(node=1)] == ["s.rank-4", "s.rank-5", "s.rank-6", "s.rank-7"]
    assert ranks.form("s", "gpu") is group
    assert [len(ranks.form("s", "node").ranks), ranks.groups["s"].start] == [2, 2]


def test_the_cell_begins_only_when_all_ranks_are_connected_and_the_gpus_are_held() -> None:
    gang = Gang()
    assert gang.brain.wanted_order("main") == ("hold", "c1", 0)
    assert gang.starts() == [1, 1]
    gang.say(0, ("driver", {"ready": True}))
    gang.world.driver(("driver", {"ready": True, "holds": True}))
    assert gang.brain.wanted_order("main") is None
    assert gang.wanted(0) is None
    gang.say(1, ("driver", {"ready": True}))
    assert gang.wanted(0) == gang.wanted(1) == ("run", "c1", 0)
    assert (gang.report.per, gang.report.ranks, gang.report.phase) == ("node", 2, CellPhase.WAITING)


def test_it_is_over_when_all_are_and_rank_0_gives_the_names() -> None:
    gang = Gang().running()
    gang.is_(0, CellPhase.DONE, names=("x",), value_bytes=5, gathered=("loss",))
    assert (gang.report.phase, gang.wanted(0)) == (CellPhase.RUNNING, None)
    gang.is_(1, CellPhase.DONE, gathered=("loss",), value_bytes=3)
    assert (gang.report.phase, gang.report.names, gang.report.gathered, gang.report.value_bytes) == (CellPhase.DONE, ("x",), ("loss",), 8)
    gang.brain.add_cell(CellRequest("c2", "main", "", spmd="node"))
    assert gang.starts() == [1, 1]
    assert gang.wanted(1) == ("run", "c2", 0)  # the same processes go on


def test_a_job_gives_back_when_all_are_done() -> None:
    gang = Gang(JOB).running()
    gang.is_(1, CellPhase.DONE)
    assert gang.brain.state is State.READY
    gang.is_(0, CellPhase.DONE)
    assert gang.brain.end is not None
    assert gang.brain.end.cause == "its job is done"


def test_the_first_to_fail_decides_and_the_others_are_stopped() -> None:
    gang = Gang().running()
    words = {"cell_id": "c1", "output": {"output_type": "stream", "name": "stderr", "text": "nan"}}
    error = {"ename": "ValueError", "evalue": "bad", "traceback": ["line"]}
    gang.say(1, (Kind.OUTPUT, words), (Kind.CELL, CellReport("c1", CellPhase.FAILED, error=error).to_json()))
    assert gang.wanted(0) == ("interrupt", "c1", 1)
    assert gang.report.phase == CellPhase.RUNNING
    gang.is_(0, CellPhase.FAILED, names=("x",), error={"ename": "ConnectionError", "evalue": "peer", "traceback": []})
    assert gang.report.phase == CellPhase.FAILED
    assert gang.report.error == {"ename": "ValueError", "evalue": "rank 1: bad", "traceback": ["In rank 1 of 2:", "line"]}
    assert gang.report.names == ("x",)
    assert gang.world.heard(Kind.OUTPUT) == [words]
    assert gang.starts() == [1, 1]


def test_output_of_rank_0_alone_is_the_cells() -> None:
    gang = Gang().running()
    for rank in (0, 1):
        gang.say(rank, (Kind.OUTPUT, {"cell_id": "c1", "output": {"rank": rank}}), (Kind.NOTICE, {"text": str(rank)}))
    assert [data["output"]["rank"] for data in gang.world.heard(Kind.OUTPUT)] == [0]
    assert gang.notices() == ["0"]


@pytest.mark.parametrize("late", [0.0, STOP_S + 1])
def test_ranks_that_do_not_stop_are_ended_with_all(late: float) -> None:
    gang = Gang().running()
    gang.is_(1, CellPhase.FAILED, error={"ename": "E", "evalue": "", "traceback": []})
    gang.world.run(late)
    assert (gang.report.phase == CellPhase.FAILED) is bool(late)
    if late:
        assert gang.notices() == ["Rank 0 does not stop: all ranks are ended, their variables are gone"]
        assert gang.starts() == []
        gang.brain.add_cell(CellRequest("c2", "main", "", spmd="node"))
        assert gang.starts() == [2, 2]


def test_an_interrupt_reaches_all_and_a_second_one_ends_them() -> None:
    gang = Gang().running()
    gang.brain.interrupt("c1")
    assert gang.wanted(0) == gang.wanted(1) == ("interrupt", "c1", 1)
    gang.brain.interrupt("c1")
    assert gang.report.phase == CellPhase.INTERRUPTED
    assert gang.starts() == []


def test_interrupted_by_all_ranks_is_interrupted() -> None:
    gang = Gang().running()
    gang.brain.interrupt("c1")
    for rank in (0, 1):
        gang.is_(rank, CellPhase.INTERRUPTED)
    assert gang.report.phase == CellPhase.INTERRUPTED
    assert gang.starts() == [1, 1]


def test_a_rank_that_is_killed_stops_all() -> None:
    gang = Gang().running()
    gang.died(1, signal=9)
    assert (gang.report.phase, gang.report.cause) == (CellPhase.LOST, "rank 1 ended (killed by signal 9)")
    assert gang.world.heard(Kind.OUTPUT)[-1]["output"]["text"] == "rank 1, the end of its log:\ntail of 1 rank-1\n"
    assert gang.starts() == []
    assert not gang.brain.driver_events("main.rank-0", 1, 99, [])  # what the others still say is not heard


def test_a_job_whose_rank_was_killed_starts_again_with_all() -> None:
    gang = Gang(JOB, retries=1).running()
    gang.died(0, signal=9)
    assert (gang.brain.attempt, gang.report.phase) == (2, CellPhase.WAITING)
    gang.world.run(6)
    assert gang.starts() == [2, 2]


def test_an_error_stands_although_a_rank_dies_after_it() -> None:
    gang = Gang().running()
    gang.is_(1, CellPhase.FAILED, error={"ename": "E", "evalue": "bad", "traceback": []})
    gang.died(0, signal=6)
    assert (gang.report.phase, gang.report.error and gang.report.error["evalue"]) == (CellPhase.FAILED, "rank 1: bad")


def test_ranks_that_cannot_start_end_the_cell_not_the_cluster() -> None:
    gang = Gang()
    for start in range(1, MOST_STILLBORN + 1):
        assert gang.starts() == [start, start]
        gang.died(1, code=1)
    assert (gang.report.phase, gang.report.cause) == (CellPhase.LOST, "rank 1 ended (exit code 1)")
    assert gang.brain.state is State.READY


def test_a_rank_that_dies_between_cells_takes_all_with_it() -> None:
    gang = Gang().running()
    for rank in (0, 1):
        gang.is_(rank, CellPhase.DONE)
    gang.died(0, code=3)
    assert gang.notices() == ["rank 0 ended (exit code 3): all ranks are ended, their variables are gone"]
    assert gang.starts() == []


def test_reset_ends_driver_and_ranks_but_not_under_a_running_cell() -> None:
    gang = Gang().running()
    assert not gang.brain.reset("main")
    for rank in (0, 1):
        gang.is_(rank, CellPhase.DONE)
    assert gang.brain.snapshot()["sessions"]["main"] == {"ready": True, "start": 1, "ranks": 1, "names": {}}
    assert gang.brain.reset("main")
    assert gang.brain.snapshot()["sessions"]["main"] == {"ready": False, "start": 2, "ranks": 0, "names": {}}
    assert gang.brain.reset("nobody")


def test_another_number_of_ranks_is_other_processes() -> None:
    gang = Gang().running()
    for rank in (0, 1):
        gang.is_(rank, CellPhase.DONE)
    gang.brain.add_cell(CellRequest("c2", "main", "", spmd="gpu"))
    assert gang.starts() == [2] * 8
    assert gang.notices() == ["The ranks per node are ended, with their variables: this cell runs once per GPU"]


def test_an_ordinary_cell_of_the_session_is_the_drivers() -> None:
    gang = Gang().running()
    for rank in (0, 1):
        gang.is_(rank, CellPhase.DONE)
    gang.brain.add_cell(CellRequest("c2", "main", ""))
    assert gang.brain.wanted_order("main") == ("run", "c2", 0)
    assert gang.wanted(0) is None


def test_an_error_says_of_which_rank_it_is() -> None:
    assert by_rank({"ename": "KeyboardInterrupt", "evalue": ""}, 3, 4)["evalue"] == "rank 3:"

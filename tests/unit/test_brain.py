"""The brain's decisions, with a clock of ours and everything it says in a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jupyter_aicluster.agent.brain import MOST_STILLBORN, Brain
from jupyter_aicluster.events import Kind
from jupyter_aicluster.protocol import Beat, CellPhase, CellReport, CellRequest, Orders, RayState, Submission
from jupyter_aicluster.state import End, Ending, State

JOB = CellRequest("job", "main", "train()", after_success_s=0.0, after_failure_s=600.0, label="In [7]")


@dataclass
class World:
    """A brain, its nodes as they would behave, and a clock."""

    nodes: int = 2
    retries: int = 0
    cell: CellRequest | None = None
    time_s: float = 3600.0
    keep_s: float = 1800.0
    hosts: list[str] = field(default_factory=lambda: ["h0", "h1", "h2", "h3"])
    now: float = 1000.0
    said: list[tuple[Kind, Mapping[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        submission = Submission(
            uid="0123456789ab",
            name="fox",
            backend="local",
            spec={"gpus": 4 * self.nodes},
            nodes=self.nodes,
            gpus_per_node=4,
            time_s=self.time_s,
            keep_s=self.keep_s,
            lease_s=600.0,
            retries=self.retries,
            connect_timeout_s=120.0,
            join_timeout_s=180.0,
            cell=self.cell.to_json() if self.cell else None,
        )
        self.brain = Brain(
            submission, lambda: self.now, lambda kind, data: self.said.append((kind, data)), lambda node, stream: f"tail of {node} {stream}"
        )
        self.boots = {k: f"boot{k}" for k in range(self.nodes)}
        self.ray: dict[int, str] = dict.fromkeys(range(self.nodes), RayState.ABSENT)
        self.attempts = dict.fromkeys(range(self.nodes), 1)
        self.drivers: dict[str, dict[str, Any]] = {}
        self.batches = 0
        self.silent: set[int] = set()
        self.util: float | None = 0.0

    def beat(self, k: int, **changes: Any) -> Orders:
        samples = ({"index": "0", "util_percent": self.util, "mem_used_bytes": 5},)
        beat: dict[str, Any] = {
            "node": k,
            "boot": self.boots[k],
            "attempt": self.attempts[k],
            "host": self.hosts[k],
            "ray": self.ray[k],
            "samples": samples,
        }
        if k == 0:
            beat |= {"ray_address": "10.0.0.1:20001", "drivers": {name: dict(driver) for name, driver in self.drivers.items()}}
        orders = self.brain.beat(Beat(**beat | changes))
        if orders.attempt != self.attempts[k]:  # everything of the old attempt goes
            self.attempts[k], self.ray[k] = orders.attempt, RayState.ABSENT
        if orders.ray and self.ray[k] == RayState.ABSENT:
            self.ray[k] = RayState.UP
        if k == 0:
            for session, start in orders.drivers.items():
                if self.drivers.get(session, {}).get("start") != start:
                    self.drivers[session] = {"start": start, "state": "running"}
        return orders

    def run(self, seconds: float) -> None:
        """Every second each node that is not silent beats, then the clock is looked at."""
        for _ in range(int(seconds)):
            self.now += 1
            for k in range(self.nodes):
                if k not in self.silent:
                    self.beat(k)
            self.brain.tick()

    def ready(self) -> World:
        self.run(6)
        assert self.brain.state is State.READY
        return self

    def driver(self, *events: tuple[str, Mapping[str, Any]], session: str = "main") -> bool:
        self.batches += 1
        start = self.brain.sessions[session].start
        return self.brain.driver_events(session, start, self.batches, [{"k": kind, "d": data} for kind, data in events])

    def driver_ready(self, session: str = "main") -> None:
        assert self.driver(("driver", {"ready": True}), session=session)

    def cell_is(self, cell_id: str, phase: CellPhase, **more: Any) -> None:
        assert self.driver((Kind.CELL, CellReport(cell_id, phase, **more).to_json()))

    def running(self, cell_id: str = "job") -> World:
        self.driver_ready()
        self.cell_is(cell_id, CellPhase.RUNNING)
        return self

    def phase(self, cell_id: str = "job") -> str:
        return self.brain.reports[cell_id].phase

    def heard(self, kind: Kind) -> list[Mapping[str, Any]]:
        return [data for said, data in self.said if said is kind]

    def ended(self) -> bool:
        return self.brain.end is not None

    def end(self) -> End:
        assert self.brain.end is not None
        return self.brain.end

    @property
    def causes(self) -> str:
        return self.brain.end.cause if self.brain.end else ""


# ---- coming up


def test_all_join_one_after_another_and_then_it_is_ready() -> None:
    world = World().ready()
    assert [data["state"] for data in world.heard(Kind.STATE)] == [State.STARTING, State.READY]
    gates = [(data["gate"], data["have"], data["missing"]) for data in world.heard(Kind.GATE)]
    assert gates == [("connected", 1, [1]), ("connected", 2, []), ("joined", 1, [1]), ("joined", 2, [])]
    assert [(data["node"], data["state"]) for data in world.heard(Kind.NODE)] == [
        (0, "connected"),
        (1, "connected"),
        (0, "joined"),
        (1, "joined"),
    ]


def test_nobody_joins_before_the_head_is_up_and_then_one_a_host() -> None:
    world = World(nodes=4, hosts=["a", "a", "a", "b"])
    for k in (3, 2, 1):
        assert not world.beat(k).ray
    assert world.beat(0).ray
    assert not world.beat(1).ray  # the head only starts
    world.ray[0] = RayState.UP
    world.beat(0)
    assert [world.beat(k, ray=RayState.ABSENT).ray for k in (1, 2, 3)] == [True, False, True]
    assert world.beat(1, ray=RayState.ABSENT).ray_address == "10.0.0.1:20001"
    assert [world.beat(k, ray=RayState.STARTING).ray for k in (1, 2)] == [True, False]
    world.beat(1, ray=RayState.UP)
    assert world.beat(2, ray=RayState.ABSENT).ray


def test_drivers_run_on_node_0_alone_and_only_once_its_ray_is_up() -> None:
    world = World()
    assert world.beat(0).drivers == {}
    assert world.beat(0).drivers == {"main": 1}
    assert world.beat(1).drivers == {}


@pytest.mark.parametrize(
    ("joins", "after_s", "cause", "evidence"),
    [
        (
            False,
            120,
            "only 1 of 2 nodes connected within 120 s: node 1 missing (its node program never reached the hub)",
            "node 1: tail of 1 ray",
        ),
        (
            True,
            300,
            "only 1 of 2 nodes joined within 300 s: node 1 missing (its raylet did not join the Ray cluster)",
            "node 1: tail of 1 ray",
        ),
    ],
)
def test_a_gate_that_times_out_names_the_missing_node_with_its_log(joins: bool, after_s: int, cause: str, evidence: str) -> None:
    world = World()
    for _ in range(after_s - 1):
        world.now += 1
        world.beat(0)
        if joins:
            world.beat(1, ray=RayState.STARTING)
        world.brain.tick()
    assert not world.ended()
    world.now += 1
    world.brain.tick()
    end = world.end()
    assert (end.ending, end.cause, end.evidence) == (Ending.FAILED, cause, evidence)
    assert end.held_gpu_s == 0.0
    assert world.beat(0).stop


# ---- nodes that go


@pytest.mark.parametrize(("cut_s", "survives"), [(8, True), (15, True), (16, False), (60, False)])
def test_a_cut_of_eight_seconds_survives_and_one_over_fifteen_does_not(cut_s: int, survives: bool) -> None:
    world = World().ready()
    world.silent = {1}
    world.run(cut_s)
    world.silent = set()
    world.run(1)
    assert world.ended() is not survives
    if not survives:
        assert world.causes == "node 1 (h1) has not been heard for 15 s"
        assert ("lost", 1) in {(data["state"], data["node"]) for data in world.heard(Kind.NODE)}
        assert world.ended()
        assert world.end().evidence == "tail of 1 ray"


@pytest.mark.parametrize(
    ("beat", "cause"),
    [
        ({"ray": RayState.FAILED, "ray_error": "raylet died"}, "Ray fell on node 1 (h1)"),
        ({"ray": RayState.ABSENT}, "Ray fell on node 1 (h1)"),
        ({"leaving": "its scheduler ended it (SIGTERM)"}, "node 1 (h1) left: its scheduler ended it (SIGTERM)"),
        ({"boot": "another"}, "the node program of node 1 (h1) fell and was started again"),
    ],
)
def test_whatever_falls_ends_all_with_its_cause(beat: dict[str, Any], cause: str) -> None:
    world = World().ready()
    orders = world.beat(1, **beat)
    assert world.causes == cause
    assert orders.stop
    assert world.beat(0).stop
    assert world.heard(Kind.STATE)[-1]["state"] == State.ENDING


def test_with_retries_all_start_again_together_and_the_job_cell_runs_again() -> None:
    world = World(retries=1, cell=JOB).ready().running()
    world.beat(1, ray=RayState.FAILED, ray_error="raylet died")
    assert (world.brain.state, world.brain.attempt) == (State.STARTING, 2)
    assert world.heard(Kind.STATE)[-1] == {
        "state": State.STARTING,
        "attempt": 2,
        "cause": "Ray fell on node 1 (h1)",
        "evidence": "raylet died",
    }
    assert world.phase() == CellPhase.WAITING
    assert world.brain.wanted_order("main") is None
    world.run(6)
    assert world.brain.state is State.READY
    assert world.drivers["main"]["start"] == 2
    world.driver_ready()
    assert world.brain.wanted_order("main") == ("run", "job", 0)
    world.cell_is("job", CellPhase.RUNNING)
    world.cell_is("job", CellPhase.DONE)
    assert (world.brain.reports["job"].attempt, world.causes) == (2, "its job is done")


def test_other_cells_are_lost_with_the_attempt_those_waiting_are_not() -> None:
    world = World(retries=1).ready()
    for name in ("a", "b"):
        world.brain.add_cell(CellRequest(name, "main", "", after_success_s=100.0))
    world.running("a")
    world.beat(1, ray=RayState.FAILED)
    assert (world.phase("a"), world.phase("b")) == (CellPhase.LOST, CellPhase.WAITING)
    assert world.brain.reports["a"].cause == "Ray fell on node 1 (h1)"
    world.run(6)
    world.driver_ready()
    assert world.brain.wanted_order("main") == ("run", "b", 0)


def test_what_the_old_attempt_still_says_changes_nothing() -> None:
    world = World(retries=1).ready()
    world.beat(1, ray=RayState.FAILED)
    for k in (0, 1):
        world.brain.beat(Beat(k, f"boot{k}", 1, ray=RayState.FAILED))  # on its way while the fall was decided
    assert (world.brain.attempt, world.ended()) == (2, False)
    assert not world.brain.driver_events("main", 1, 99, [{"k": "driver", "d": {}}])  # a process of the first attempt


def test_retries_used_up_is_the_end_with_the_last_cause() -> None:
    world = World(retries=1).ready()
    world.beat(1, ray=RayState.FAILED)
    world.run(6)
    world.beat(0, ray=RayState.FAILED, ray_error="again")
    assert (world.end().ending, world.end().cause, world.end().evidence) == (Ending.FAILED, "Ray fell on node 0 (h0)", "again")


@pytest.mark.parametrize("how", ["silent", "leaving", "restarted"])
def test_nodes_that_fall_together_are_one_fall(how: str) -> None:
    """A switch that dies, a preemption of the whole gang: one cause, one retry."""
    world = World(nodes=3, retries=1).ready()
    if how == "silent":
        world.silent = {1, 2}
        world.run(20)
    for k in (1, 2):
        if how == "leaving":
            world.beat(k, leaving="preempted")
        elif how == "restarted":
            world.boots[k] = "another"
            world.attempts[k] = 1
            world.beat(k, ray=RayState.ABSENT)
    assert world.brain.attempt == 2
    assert not world.ended()


# ---- cells


def test_a_job_runs_as_soon_as_all_have_joined_and_gives_back_at_once() -> None:
    world = World(cell=JOB)
    assert world.phase() == CellPhase.WAITING
    world.driver_ready()
    assert world.brain.wanted_order("main") is None  # not before N/N
    world.ready()
    assert world.brain.wanted_order("main") == ("run", "job", 0)
    world.cell_is("job", CellPhase.RUNNING)
    world.now += 10
    world.cell_is("job", CellPhase.DONE, names=("losses",), value_bytes=9)
    report = world.brain.reports["job"]
    assert (report.phase, report.names, report.label) == (CellPhase.DONE, ("losses",), "In [7]")
    assert report.started_s is not None
    assert report.ended_s == report.started_s + 10
    assert world.end().ending is Ending.DONE
    assert world.beat(1).stop


def test_a_job_whose_results_found_no_room_holds_its_gpus() -> None:
    world = World(cell=JOB).ready().running()
    world.cell_is("job", CellPhase.DONE, stayed=("model",))
    assert world.brain.reports["job"].stayed == ("model",)
    assert not world.ended()
    assert world.brain.snapshot()["deadlines"].keys() >= {"hold"}


def test_variables_of_a_session_are_shown_until_its_driver_is_another() -> None:
    world = World(cell=JOB).ready().running()
    assert world.driver(("names", {"x": ["list", 8]}))
    assert world.brain.snapshot()["sessions"]["main"]["names"] == {"x": ["list", 8]}
    world.brain.interrupt("job")
    world.brain.interrupt("job")
    assert world.brain.snapshot()["sessions"]["main"]["names"] == {}
    assert world.heard(Kind.NOTICE)[-1]["fresh"] == "main"


def test_the_same_cell_again_is_the_same_run() -> None:
    world = World().ready()
    request = CellRequest("c", "main", "x", after_success_s=60.0)
    first = world.brain.add_cell(request)
    assert world.brain.add_cell(request) is first
    assert len(world.heard(Kind.CELL)) == 1
    world.running("c")
    world.cell_is("c", CellPhase.DONE)
    assert world.brain.add_cell(request).phase == CellPhase.DONE
    assert world.brain.wanted_order("main") is None


def test_cells_of_a_session_run_one_after_another_and_sessions_side_by_side() -> None:
    world = World().ready()
    for cell_id, session in (("a", "main"), ("b", "main"), ("c", "other")):
        world.brain.add_cell(CellRequest(cell_id, session, "", after_success_s=0.0))
    world.run(2)
    world.driver_ready()
    world.driver_ready("other")
    assert [world.brain.wanted_order(name) for name in ("main", "other", "nobody")] == [("run", "a", 0), ("run", "c", 0), None]
    world.cell_is("a", CellPhase.RUNNING)
    world.cell_is("a", CellPhase.DONE)
    assert not world.ended()  # others still wait, though it need not be kept
    assert world.brain.wanted_order("main") == ("run", "b", 0)


def test_a_batch_of_events_counts_once() -> None:
    world = World().ready()
    batch: list[Mapping[str, Any]] = [{"k": "output", "d": {"cell_id": "c", "output": {}}}]
    assert world.brain.driver_events("main", 1, 1, batch)
    assert world.brain.driver_events("main", 1, 1, batch)
    assert len(world.heard(Kind.OUTPUT)) == 1
    assert not world.brain.driver_events("main", 2, 2, batch)
    assert not world.brain.driver_events("nobody", 1, 1, batch)


def test_what_a_driver_says_of_a_cell_that_is_over_or_unknown_is_nothing() -> None:
    world = World(cell=JOB).ready().running()
    world.brain.interrupt("job")
    world.cell_is("job", CellPhase.INTERRUPTED)
    before = list(world.said)
    world.cell_is("job", CellPhase.DONE)
    world.cell_is("never", CellPhase.DONE)
    assert world.said == before
    assert world.phase() == CellPhase.INTERRUPTED


def test_interrupt_reaches_the_driver_a_second_replaces_it() -> None:
    world = World(cell=JOB).ready().running()
    world.brain.interrupt("job")
    assert world.brain.wanted_order("main") == ("interrupt", "job", 1)
    world.brain.interrupt("job")
    assert world.phase() == CellPhase.INTERRUPTED
    assert world.beat(0).drivers == {"main": 2}
    assert "Its variables are gone" in world.heard(Kind.NOTICE)[-1]["text"]
    world.brain.interrupt("job")  # over: nothing
    assert world.brain.sessions["main"].start == 2
    assert not world.ended()  # held


def test_an_interrupt_that_was_heard_leaves_the_driver_and_holds_the_gpus() -> None:
    world = World(cell=JOB).ready().running()
    world.brain.interrupt("job")
    world.cell_is("job", CellPhase.INTERRUPTED)
    assert world.brain.sessions["main"].start == 1
    assert world.brain.wanted_order("main") is None
    assert not world.ended()
    assert "hold" in world.brain.snapshot()["deadlines"]


def test_interrupting_a_cell_that_waits_ends_it_and_unknown_ones_nothing() -> None:
    world = World().ready()
    for name in ("a", "b"):
        world.brain.add_cell(CellRequest(name, "main", "", after_success_s=60.0))
    world.running("a")
    world.brain.interrupt("b")
    world.brain.interrupt("never")
    assert (world.phase("a"), world.phase("b")) == (CellPhase.RUNNING, CellPhase.INTERRUPTED)
    assert world.brain.wanted_order("main") == ("run", "a", 0)


def test_without_a_hold_an_interrupted_job_was_interrupted() -> None:
    world = World(cell=CellRequest("job", "main", "", after_failure_s=0.0)).ready().running()
    world.brain.interrupt("job")
    world.cell_is("job", CellPhase.INTERRUPTED)
    assert world.end().ending is Ending.STOPPED
    assert "failed" not in world.causes


# ---- drivers that go


def test_a_driver_that_dies_loses_its_cell_and_is_replaced() -> None:
    world = World(cell=JOB).ready().running()
    world.drivers["main"] = {"start": 1, "state": "exited", "signal": 9}
    world.beat(0)
    assert (world.phase(), world.brain.reports["job"].cause) == (CellPhase.LOST, "its driver ended (killed by signal 9)")
    assert "A new one starts; its variables are gone." in world.heard(Kind.NOTICE)[-1]["text"]
    world.brain.beat(Beat(0, "boot0", 1, ray=RayState.UP, drivers={"main": {"start": 1, "state": "exited", "signal": 9}}))  # said again
    assert world.brain.sessions["main"].start == 2


def test_a_job_whose_driver_is_killed_runs_again_while_it_may() -> None:
    world = World(cell=JOB, retries=1).ready().running()
    world.drivers["main"] = {"start": 1, "state": "exited", "signal": 9}
    world.beat(0)
    assert (world.brain.attempt, world.phase()) == (2, CellPhase.WAITING)


def test_cells_that_waited_run_in_the_new_driver() -> None:
    world = World().ready()
    for name in ("a", "b"):
        world.brain.add_cell(CellRequest(name, "main", "", after_success_s=60.0))
    world.running("a")
    world.drivers["main"] = {"start": 1, "state": "exited", "code": 1}
    world.run(1)
    world.driver_ready()
    assert (world.phase("a"), world.brain.wanted_order("main")) == (CellPhase.LOST, ("run", "b", 0))


def test_drivers_that_never_become_ready_end_the_cluster_with_their_log() -> None:
    world = World(cell=JOB).ready()
    for start in range(1, MOST_STILLBORN + 1):
        assert not world.ended()
        world.drivers["main"] = {"start": start, "state": "exited", "code": 1}
        world.beat(0)
    assert world.ended()
    assert (world.causes, world.end().evidence) == (
        "its driver could not start (exit code 1)",
        f"tail of 0 driver-main-{MOST_STILLBORN}",
    )
    assert world.phase() == CellPhase.LOST


def test_a_driver_that_was_ready_is_not_stillborn() -> None:
    world = World().ready()
    for start in range(1, 3 * MOST_STILLBORN):
        world.driver_ready()
        world.drivers["main"] = {"start": start, "state": "exited", "code": 1}
        world.beat(0)
    assert not world.ended()


def test_no_new_driver_is_promised_by_a_cluster_that_ends() -> None:
    world = World().ready()
    world.driver_ready()
    world.drivers["main"] = {"start": 1, "state": "exited", "signal": 15}
    world.beat(0, ray=RayState.FAILED)
    assert world.ended()
    assert world.heard(Kind.NOTICE) == []


# ---- time


def test_the_time_limit_counts_from_joined_not_from_the_beginning() -> None:
    world = World(time_s=300.0)
    world.silent = {1}
    world.run(100)
    world.silent = set()
    world.run(6)
    joined = world.brain.joined_s
    assert joined is not None
    world.brain.add_cell(CellRequest("c", "main", "", after_success_s=60.0))
    world.running("c")
    world.util = 100.0
    world.run(joined + 299 - world.now)
    assert not world.ended()
    world.run(1)
    assert (world.end().ending, world.causes) == (Ending.TIME, "its time limit of 5:00 was reached")
    assert world.phase("c") == CellPhase.LOST
    assert world.end().held_gpu_s == pytest.approx(300 * 8)


def test_a_held_cluster_that_nobody_uses_goes_back_after_keep() -> None:
    world = World(keep_s=100.0).ready()
    began = world.now
    while not world.ended() and world.now < began + 300:
        world.brain.client_seen()  # a notebook is open, but idle
        world.run(1)
    assert (world.end().ending, world.causes) == (Ending.IDLE, "nothing ran on it for 1:40")
    assert world.now == pytest.approx(began + 100, abs=6)


def test_a_failed_job_is_held_so_long_and_then_goes_back() -> None:
    world = World(cell=JOB).ready().running()
    world.cell_is("job", CellPhase.FAILED, error={"ename": "NameError"})
    failed = world.now
    while not world.ended() and world.now < failed + 900:
        world.brain.client_seen()
        world.run(1)
    assert world.now == failed + 600
    assert (world.brain.reports["job"].error, world.causes) == ({"ename": "NameError"}, "its failed cell was not run again within 10:00")


def test_keep_during_a_hold_counts_from_now_and_is_announced() -> None:
    world = World(cell=JOB).ready().running()
    world.cell_is("job", CellPhase.FAILED)
    world.run(500)
    world.brain.keep(1800.0)
    assert world.heard(Kind.DEADLINE)[-1]["deadlines"]["keep"] == world.now + 1800
    assert "hold" not in world.brain.snapshot()["deadlines"]


def test_keep_during_a_job_outlives_it() -> None:
    world = World(cell=JOB).ready().running()
    world.brain.keep(1800.0)
    world.run(5)
    world.cell_is("job", CellPhase.DONE)
    assert not world.ended()
    assert world.brain.snapshot()["deadlines"]["keep"] == pytest.approx(world.now + 1800)


def test_without_any_client_idle_gpus_go_back_after_the_lease() -> None:
    world = World().ready()
    began = world.now
    world.run(590)
    assert not world.ended()
    world.run(20)
    assert (world.end().ending, world.causes) == (Ending.LEASE, "no notebook was there for 10:00 and its GPUs did nothing")
    assert world.end().ended_s == pytest.approx(began + 600, abs=6)


@pytest.mark.parametrize(("util", "ends"), [(0.0, True), (4.9, True), (50.0, False), (None, False)])
def test_without_any_client_a_cell_that_computes_runs_on(util: float | None, ends: bool) -> None:
    """Unreadable GPUs (MIG) count as work."""
    world = World(cell=JOB).ready().running()
    world.util = util
    world.run(700)
    assert world.ended() is ends


def test_without_client_and_cell_unreadable_gpus_go_back_too() -> None:
    world = World().ready()
    world.util = None
    world.run(700)
    assert world.ended()


def test_deadlines_are_said_when_they_are_set_or_move_not_every_second() -> None:
    world = World().ready()
    before = len(world.heard(Kind.DEADLINE))
    for _ in range(100):
        world.brain.client_seen()
        world.run(1)
    assert len(world.heard(Kind.DEADLINE)) == before
    world.run(310)  # nobody there: the lease is now worth a word
    assert "lease" in world.heard(Kind.DEADLINE)[-1]["deadlines"]


# ---- the end


def test_the_first_cause_of_an_end_stands_and_it_is_said_once() -> None:
    world = World(cell=JOB).ready().running()
    world.brain.finish(Ending.STOPPED, "stopped by its user")
    said = len(world.said)
    world.brain.finish(Ending.FAILED, "something else")
    world.run(20)
    world.beat(1, ray=RayState.FAILED)
    assert world.causes == "stopped by its user"
    assert world.phase() == CellPhase.INTERRUPTED
    assert [data for kind, data in world.said[said:] if kind is Kind.STATE] == []
    assert world.heard(Kind.STATE)[-1]["cause"].startswith("stopped by its user after ")


def test_it_is_over_when_all_nodes_have_said_goodbye() -> None:
    world = World().ready()
    world.brain.finish(Ending.STOPPED, "stopped by its user")
    assert set(world.brain.nodes) == {0, 1}
    for k in (0, 1):
        assert world.beat(k, leaving="the cluster ends").stop
    assert world.brain.all_left
    assert world.causes == "stopped by its user"


def test_the_end_record_has_the_accounts() -> None:
    world = World().ready()
    world.util = 50.0
    world.run(100)
    world.brain.finish(Ending.STOPPED, "stopped")
    end = world.end()
    assert (end.gpus, end.peak_mem_bytes, end.used_gpus) == (8, 5, 2)
    assert end.busy_gpu_s == pytest.approx(100, abs=5)
    assert world.brain.snapshot()["end"] == end.to_json()


def test_the_snapshot_says_where_things_are() -> None:
    snapshot = World(cell=JOB).ready().brain.snapshot()
    assert (snapshot["state"], snapshot["gpus"], snapshot["ray_address"]) == ("ready", 8, "10.0.0.1:20001")
    assert snapshot["nodes"][1]["host"] == "h1"
    assert set(snapshot["deadlines"]) == {"time", "lease"}
    assert snapshot["cells"]["job"]["phase"] == "waiting"


# ---- whatever happens


class Anything(RuleBasedStateMachine):
    """Nodes, drivers, people and the clock in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(retries=2, cell=JOB)
        self.cells = ["job"]
        self.before_end: set[str] = set()

    @rule(seconds=st.sampled_from([1, 1, 1, 8, 20, 700]))
    def time_passes(self, seconds: int) -> None:
        self.world.run(seconds)

    @rule(
        k=st.integers(0, 1),
        how=st.sampled_from([{"ray": RayState.FAILED}, {"leaving": "SIGTERM"}, {"boot": "other"}, {"ray": RayState.STARTING}]),
    )
    def a_node_says(self, k: int, how: dict[str, Any]) -> None:
        self.world.beat(k, **how)

    @rule(k=st.integers(0, 1))
    def a_node_is_cut_off_or_back(self, k: int) -> None:
        self.world.silent ^= {k}

    @rule(phase=st.sampled_from(CellPhase), pick=st.integers(0, 9))
    def the_driver_says(self, phase: CellPhase, pick: int) -> None:
        self.world.driver(("driver", {}), (Kind.CELL, CellReport(self.cells[pick % len(self.cells)], phase).to_json()))

    @rule(how=st.sampled_from([{"code": 1}, {"signal": 9}]))
    def the_driver_ends(self, how: dict[str, int]) -> None:
        if known := self.world.drivers.get("main"):
            known |= {"state": "exited"} | how

    @rule(after=st.sampled_from([0.0, 300.0]))
    def a_cell_comes(self, after: float) -> None:
        self.cells.append(f"c{len(self.cells)}")
        self.world.brain.add_cell(CellRequest(self.cells[-1], "main", "", after_success_s=after, after_failure_s=after))

    @rule(pick=st.integers(0, 9))
    def somebody_interrupts(self, pick: int) -> None:
        self.world.brain.interrupt(self.cells[pick % len(self.cells)])

    @rule()
    def somebody_is_there(self) -> None:
        self.world.brain.client_seen()

    @rule()
    def somebody_stops_it(self) -> None:
        if len(self.world.said) > 40:
            self.world.brain.finish(Ending.STOPPED, "stopped by its user")

    @invariant()
    def states_are_monotone_within_an_attempt(self) -> None:
        said = [(data["attempt"], list(State).index(data["state"])) for data in self.world.heard(Kind.STATE)]
        assert said == sorted(said)
        assert len(said) == len(set(said))

    @invariant()
    def a_cell_is_over_once(self) -> None:
        over = [data["cell_id"] for data in self.world.heard(Kind.CELL) if CellPhase(data["phase"]).over]
        assert len(over) == len(set(over))

    @invariant()
    def an_end_leaves_nothing_running(self) -> None:
        brain = self.world.brain
        assert brain.attempt <= 3
        if brain.end:
            assert [cell_id for cell_id in self.before_end if not CellPhase(brain.reports[cell_id].phase).over] == []
            assert brain.beat(Beat(1, "boot1", brain.attempt)).stop
        else:
            self.before_end = set(brain.reports)


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.sampled_from(["beat", "tick"]), max_size=20))
def test_nothing_is_ready_before_every_node_has_joined(steps: list[str]) -> None:
    world = World()
    for step in steps:
        if step == "beat":
            world.beat(0)
        else:
            world.now += 1
            world.brain.tick()
    assert world.brain.state is not State.READY

"""The cluster's one brain: pure decisions over heartbeats, cells and the clock. It never imports ray and does no I/O.

The hub calls it from one thread and carries out what it answers; everything it decides is said through ``emit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_aicluster.agent.gates import Gate, GateName, verdict
from jupyter_aicluster.agent.lease import ENDING, Deadline, Facts, Why, cause, deadlines
from jupyter_aicluster.agent.ranks import STOP_S, Rank, RankGroup, Ranks
from jupyter_aicluster.agent.usage import Usage
from jupyter_aicluster.events import Kind
from jupyter_aicluster.protocol import SILENT_S, Beat, CellPhase, CellReport, CellRequest, Orders, RayState, Submission
from jupyter_aicluster.state import End, Ending, State
from jupyter_aicluster.units import format_duration

MOST_STILLBORN = 3
_ENDING_OF = {  # of a cluster whose job's GPUs are not held after it
    CellPhase.DONE: (Ending.DONE, "its job is done"),
    CellPhase.FAILED: (Ending.FAILED, "its job failed and its GPUs were not to be held"),
    CellPhase.INTERRUPTED: (Ending.STOPPED, "its job was interrupted"),
    CellPhase.LOST: (Ending.FAILED, "its job was lost"),
}
INTERRUPT_TWICE_S = 5.0  # a second interrupt so soon means that the first did not help
_PER = {"gpu": "GPU", "node": "node"}
Emit = Callable[[Kind, Mapping[str, Any]], None]


@dataclass(slots=True)
class Node:
    boot: str
    seen_s: float
    beat: Beat
    joined: bool = False


@dataclass(slots=True)
class Session:
    """A driver and the cells waiting for it. ``start`` numbers its processes: another number is a fresh process."""

    start: int = 1
    ready: bool = False
    batch: int = 0  # the last batch of events taken from this process
    interrupts: int = 0  # of the running cell
    interrupted_s: float = -INTERRUPT_TWICE_S
    stillborn: int = 0  # processes in a row that ended before they were ready
    holds: bool = False  # it has all GPUs in Ray's books, for its ranks
    cells: list[str] = field(default_factory=list)  # waiting or running, oldest first
    names: Mapping[str, Any] = field(default_factory=dict)  # its variables: name → [type, bytes]


class Brain:
    """``clock`` gives seconds, Unix-like and without jumps; ``tail`` the newest lines of a node's log stream."""

    def __init__(
        self, submission: Submission, clock: Callable[[], float], emit: Emit, tail: Callable[[int, str], str] = lambda node, stream: ""
    ) -> None:
        self.submission = submission
        self.attempt = 1
        self.nodes: dict[int, Node] = {}
        self.sessions: dict[str, Session] = {}
        self.ranks = Ranks(submission.nodes, submission.gpus_per_node)
        self.requests: dict[str, CellRequest] = {}
        self.reports: dict[str, CellReport] = {}
        self.end: End | None = None
        self.joined_s: float | None = None  # first time N/N; the time limit counts from here
        self._clock, self._emit, self._tail = clock, emit, tail
        self._began_s = self._client_s = clock()
        self._gates = self._new_gates()
        self._ready = False
        self._quiet_s = self._began_s
        self._patience, self._patience_s = Why.KEEP, submission.keep_s
        self._kept_s = 0.0
        self._announced: tuple[Deadline, ...] = ()
        self.usage = Usage()
        emit(Kind.STATE, {"state": State.STARTING, "attempt": 1})
        self._session(submission.session)
        if submission.cell is not None:
            self.add_cell(CellRequest.from_json(submission.cell))

    # ---- what is so

    @property
    def state(self) -> State:
        return State.ENDING if self.end else State.READY if self._ready else State.STARTING

    @property
    def client_s(self) -> float:
        return self._client_s

    @property
    def all_left(self) -> bool:
        """Whether every node that connected has said goodbye."""
        return not self.nodes

    def snapshot(self) -> dict[str, Any]:
        """Answer to GET /v1/cluster."""
        head = self.nodes.get(0)
        return {
            "uid": self.submission.uid,
            "name": self.submission.name,
            "state": str(self.state),
            "attempt": self.attempt,
            "gpus": self.submission.nodes * self.submission.gpus_per_node,
            "nodes": {k: {"host": n.beat.host, "ray": n.beat.ray, "gpus": list(n.beat.gpus)} for k, n in sorted(self.nodes.items())},
            "ray_address": head.beat.ray_address if head else "",
            "dashboard": head.beat.dashboard if head else "",
            "client_server": head.beat.client_server if head else "",
            "joined_s": self.joined_s,
            "deadlines": {str(d.what): d.at_s for d in self._deadlines()},
            "lease_s": self.submission.lease_s,
            "cells": {cell_id: report.to_json() for cell_id, report in self.reports.items()},
            "sessions": {name: self._session_json(name, session) for name, session in self.sessions.items()},
            "end": self.end.to_json() if self.end else None,
        }

    def _session_json(self, name: str, session: Session) -> dict[str, Any]:
        """``ranks``: the start number of its ranks, which stays while they keep their variables; 0: none."""
        group = self.ranks.groups.get(name)
        return {"ready": session.ready, "start": session.start, "ranks": group.start if group else 0, "names": session.names}

    def start_of(self, name: str) -> int | None:
        """Which process may speak for this session or rank; None: it is not known."""
        if found := self.ranks.find(name):
            return found[0].start
        return self.sessions[name].start if name in self.sessions else None

    # ---- nodes

    def beat(self, beat: Beat) -> Orders:
        """Take a heartbeat; the answer is the wanted state of that node."""
        known = self.nodes.get(beat.node)
        if beat.leaving:
            if known and known.boot == beat.boot:
                del self.nodes[beat.node]
                self._emit(Kind.NODE, {"node": beat.node, "host": beat.host, "state": "left", "gpus": []})
                self._fell(known, f"node {beat.node} ({beat.host}) left: {beat.leaving}")
        else:
            if known and known.boot != beat.boot:
                self._fell(known, f"the node program of node {beat.node} ({beat.host}) fell and was started again")
                known = None
            self._take(beat, known)
        return self._orders(beat.node)

    def _take(self, beat: Beat, known: Node | None) -> None:
        now = self._clock()
        if known is None:
            node = self.nodes[beat.node] = Node(beat.boot, now, beat)
            self._emit(Kind.NODE, {"node": beat.node, "host": beat.host, "state": "connected", "gpus": list(beat.gpus)})
            self._emit(Kind.GATE, self._gates[GateName.CONNECTED].data(self.nodes))
        else:
            node = known
            node.seen_s, node.beat = now, beat
        if beat.samples:
            self.usage.sample(beat.node, beat.samples, now, counting=self.joined_s is not None)
            self._emit(Kind.GPUS, {"node": beat.node, "samples": list(beat.samples)})
        if self.end or beat.attempt != self.attempt:
            return  # what it says is about an earlier attempt
        if beat.ray == RayState.FAILED or (node.joined and beat.ray != RayState.UP):
            self._fall(f"Ray fell on node {beat.node} ({beat.host})", beat.ray_error)
        elif beat.ray == RayState.UP and not node.joined:
            node.joined = True
            self._emit(Kind.NODE, {"node": beat.node, "host": beat.host, "state": "joined", "gpus": list(beat.gpus)})
            self._emit(Kind.GATE, self._gates[GateName.JOINED].data(self._joined()))
            self._look_ready()
        if beat.node == 0 and beat.attempt == self.attempt and not self.end:  # both may have changed above
            self._look_at_drivers(beat)
        if beat.attempt == self.attempt and not self.end:
            self._look_at_ranks(beat)

    def _orders(self, k: int) -> Orders:
        if self.end:
            return Orders(self.attempt, stop=True)
        head = self.nodes.get(0)
        if head is None or not head.joined:
            return Orders(self.attempt, ray=self._may_start(k))
        self._form_ranks()
        mine = list(self.ranks.all(node=k))
        drivers = {name: session.start for name, session in self.sessions.items()} if k == 0 else {}
        places = head.beat.rendezvous, head.beat.coordinator
        return Orders(
            attempt=self.attempt,
            ray=self._may_start(k),
            ray_address=head.beat.ray_address,
            drivers=drivers | {rank.name: group.start for group, rank in mine},
            ranks={rank.name: self.ranks.environment(group, rank, *places) for group, rank in mine},
        )

    def _may_start(self, k: int) -> bool:
        """The head first; then, on each host, one raylet after another: Ray gives each 30 s, and they slow each other down."""
        node = self.nodes.get(k)
        if node is None:
            return False
        if node.joined or k == 0:
            return True
        before = [n for j, n in self.nodes.items() if j < k and n.beat.host == node.beat.host]
        return 0 in self._joined() and all(n.joined for n in before)

    def _joined(self) -> list[int]:
        return [k for k, node in self.nodes.items() if node.joined]

    def _look_ready(self) -> None:
        if self._ready or len(self._joined()) < self.submission.nodes:
            return
        now = self._clock()
        self._ready = True
        self._quiet_s = now
        self._client_s = max(self._client_s, now)  # nobody can have left before it was there
        if self.joined_s is None:
            self.joined_s = now
        self._emit(Kind.STATE, {"state": State.READY, "attempt": self.attempt})
        self._say_deadlines()

    def _look_at_drivers(self, beat: Beat) -> None:
        for name, session in tuple(self.sessions.items()):
            seen = beat.drivers.get(name)
            if seen and seen.get("start") == session.start and seen.get("state") == "exited":
                self._driver_ended(name, session, seen.get("code"), seen.get("signal"))

    def _driver_ended(self, name: str, session: Session, code: int | None, signal: int | None) -> None:
        if signal and self._job_again(session):
            self._fall(f"the driver was killed by signal {signal}")
        else:
            self.driver_lost(name, _how(code, signal))

    def _job_again(self, session: Session) -> bool:
        """A job whose process was killed (out of memory, a crash in native code) runs again, if it may, like one whose node fell."""
        job = (self.submission.cell or {}).get("cell_id")
        return self.attempt <= self.submission.retries and job in session.cells and self.reports[job].phase == CellPhase.RUNNING

    # ---- sessions and cells

    def _session(self, name: str) -> Session:
        return self.sessions.setdefault(name, Session())

    def add_cell(self, request: CellRequest) -> CellReport:
        """Idempotent by cell id: the same request again answers with the report of the first."""
        if known := self.reports.get(request.cell_id):
            return known
        self.requests[request.cell_id] = request
        self._session(request.session).cells.append(request.cell_id)
        ranks = self.ranks.count(request.spmd) if request.spmd else 0
        return self._report(CellReport(request.cell_id, CellPhase.WAITING, self.attempt, request.label, per=request.spmd, ranks=ranks))

    def _report(self, report: CellReport) -> CellReport:
        self.reports[report.cell_id] = report
        self._emit(Kind.CELL, report.to_json())
        return report

    def wanted_order(self, name: str) -> tuple[str, str, int] | None:
        """What a connected driver or rank should do: ("run", cell, 0), ("interrupt", cell, n-th) or None. A state: it can be said again.

        A driver whose next cell is for its ranks has to hold the GPUs: ("hold", cell, 0).
        """
        found = self.ranks.find(name)
        session = self.sessions.get(found[0].session if found else name)
        if session is None or not session.cells or not self._ready or not session.ready or self.end:
            return None
        cell_id = session.cells[0]
        per = self.requests[cell_id].spmd
        if found is None and per:
            return None if session.holds else ("hold", cell_id, 0)
        if found and not (found[0].per == per and found[0].whole and session.holds and found[1].report is None):
            return None
        if session.interrupts:
            return "interrupt", cell_id, session.interrupts
        return "run", cell_id, 0

    def driver_events(self, name: str, start: int, batch: int, events: list[Mapping[str, Any]]) -> bool:
        """Take a driver's or rank's batch once; False for a process that is no longer the session's."""
        if found := self.ranks.find(name):
            return self._rank_events(*found, start, batch, events)
        session = self.sessions.get(name)
        if session is None or start != session.start:
            return False
        if batch <= session.batch:
            return True
        session.batch = batch
        for event in events:
            kind, data = str(event["k"]), event["d"]
            if kind == "driver":
                session.ready, session.stillborn = True, 0
                session.holds = session.holds or bool(data.get("holds"))
            elif kind == "names":
                session.names = data
            elif kind == Kind.CELL:
                self._cell_event(session, CellReport.from_json(data))
            elif kind in (Kind.OUTPUT, Kind.NOTICE):
                self._emit(Kind(kind), data)
        return True

    def _cell_event(self, session: Session, said: CellReport) -> None:
        request, known = self.requests.get(said.cell_id), self.reports.get(said.cell_id)
        if request is None or known is None or CellPhase(known.phase).over:
            return
        now = self._clock()
        phase = CellPhase(said.phase)
        report = replace(
            known,
            phase=phase,
            attempt=self.attempt,
            started_s=known.started_s or now,
            ended_s=now if phase.over else None,
            names=tuple(said.names),
            value_bytes=said.value_bytes,
            error=said.error,
            admitted=said.admitted,
            along=tuple(said.along),
            deleted=tuple(said.deleted),
            lacks=tuple(said.lacks),
            stayed=tuple(said.stayed),
        )
        self._report(report)
        if phase.over:
            self._cell_over(session, request, phase)

    def _cell_over(self, session: Session, request: CellRequest, phase: CellPhase) -> None:
        session.cells.remove(request.cell_id)
        session.interrupts = 0
        self._quiet_s = self._clock()
        good = phase is CellPhase.DONE and not self.reports[request.cell_id].stayed  # else the GPUs hold what is nowhere else
        self._patience = Why.KEEP if good else Why.HOLD
        self._patience_s = request.after_success_s if good else request.after_failure_s
        if self._kept_s > self._patience_s:  # somebody said so while it ran
            self._patience, self._patience_s = Why.KEEP, self._kept_s
        if self._active():
            return  # another cell waits: nothing is given back before it ran
        if self._patience_s <= 0:
            self.finish(*_ENDING_OF[phase])
        self._say_deadlines()

    def interrupt(self, cell_id: str) -> None:
        """Interrupt a cell run; one still waiting just ends. A second time within 5 s: its driver is replaced."""
        report = self.reports.get(cell_id)
        if report is None or CellPhase(report.phase).over:
            return
        request = self.requests[cell_id]
        session = self._session(request.session)
        if report.phase == CellPhase.WAITING:
            self._report(replace(report, phase=CellPhase.INTERRUPTED, ended_s=self._clock()))
            self._cell_over(session, request, CellPhase.INTERRUPTED)
            return
        now = self._clock()
        session.interrupts += 1
        again, session.interrupted_s = now - session.interrupted_s < INTERRUPT_TWICE_S, now
        if session.interrupts > 1 and again and request.spmd:
            self._end_ranks(request.session, "Interrupted twice: the ranks are ended. Their variables are gone.")
        elif session.interrupts > 1 and again:
            self._emit(
                Kind.NOTICE,
                {"text": "Interrupted twice: the driver is ended. Its variables are gone.", "level": "warning", "fresh": request.session},
            )
            self._replace_driver(request.session, CellPhase.INTERRUPTED, "it was interrupted twice and its process was ended")

    def driver_lost(self, name: str, how: str) -> None:
        """A driver's process is gone. Its running cell is lost; a fresh process takes its place, without its variables."""
        session = self.sessions[name]
        if not session.ready:
            session.stillborn += 1
            if session.stillborn >= MOST_STILLBORN:
                stream = f"driver-{name}" if session.start == 1 else f"driver-{name}-{session.start}"
                self.finish(Ending.FAILED, f"its driver could not start ({how})", self._tail(0, stream))
                return
        else:
            self._emit(
                Kind.NOTICE,
                {"text": f"The driver ended ({how}). A new one starts; its variables are gone.", "level": "warning", "fresh": name},
            )
        self._replace_driver(name, CellPhase.LOST, f"its driver ended ({how})")

    def _replace_driver(self, name: str, phase: CellPhase, why: str) -> None:
        session = self.sessions[name]
        for cell_id in list(session.cells):
            report = self.reports[cell_id]
            if report.phase == CellPhase.RUNNING:
                self._report(replace(report, phase=phase, ended_s=self._clock(), cause=why))
                self._cell_over(session, self.requests[cell_id], phase)
        self._fresh_driver(name)

    def _fresh_driver(self, name: str) -> None:
        """Ranks go with the driver, which holds their GPUs."""
        session = self.sessions[name]
        session.start, session.ready, session.batch, session.interrupts = session.start + 1, False, 0, 0
        session.holds = False
        session.names = {}
        self.ranks.drop(name)

    def reset(self, name: str) -> bool:
        """Fresh processes for a session, so that all its variables are gone; False, and nothing happens, while one of its cells runs."""
        if name in self.sessions:
            if any(self.reports[cell_id].phase == CellPhase.RUNNING for cell_id in self.sessions[name].cells):
                return False
            self._fresh_driver(name)
        return True

    # ---- ranks

    def _form_ranks(self) -> None:
        """Ranks for every session whose next cell is for them; those of earlier cells go on, if they are as many as it wants."""
        for name, session in self.sessions.items():
            per = self.requests[session.cells[0]].spmd if session.cells else ""
            if per:
                before = self.ranks.groups.get(name)
                if self.ranks.form(name, per) is not before and before is not None:
                    text = f"The ranks per {before.per} are ended, with their variables: this cell runs once per {_PER[per]}"
                    self._emit(Kind.NOTICE, {"text": text, "level": "warning"})

    def _rank_events(self, group: RankGroup, rank: Rank, start: int, batch: int, events: list[Mapping[str, Any]]) -> bool:
        """As `driver_events`. Rank 0's output is the cell's; of the others the log has it, and what their last words were."""
        if start != group.start:
            return False
        if batch <= rank.batch:
            return True
        rank.batch = batch
        for event in events:
            kind, data = str(event["k"]), event["d"]
            if kind == "driver":
                rank.ready = True
            elif kind == Kind.CELL:
                self._rank_cell(group, rank, CellReport.from_json(data))
            elif kind in (Kind.OUTPUT, Kind.NOTICE) and rank.number == 0:
                self._emit(Kind(kind), data)
            elif kind == Kind.OUTPUT:
                rank.words.append(data)
        return True

    def _rank_cell(self, group: RankGroup, rank: Rank, said: CellReport) -> None:
        known, session = self.reports.get(said.cell_id), self.sessions[group.session]
        if known is None or session.cells[:1] != [said.cell_id]:
            return  # of a cell that is over
        now, phase = self._clock(), CellPhase(said.phase)
        if not phase.over:
            if known.phase == CellPhase.WAITING:
                self._report(replace(known, phase=CellPhase.RUNNING, attempt=self.attempt, started_s=now))
            return
        rank.report = said
        if phase is not CellPhase.DONE and group.first is None:
            group.first, group.stop_by_s = rank.number, now + STOP_S
            session.interrupts = max(1, session.interrupts)
            for words in rank.words:
                self._emit(Kind.OUTPUT, words)
        if group.over:
            self._ranks_over(group)

    def _ranks_over(self, group: RankGroup) -> None:
        session = self.sessions[group.session]
        report = group.outcome(self.reports[session.cells[0]], self._clock())
        group.rest()
        self._report(report)
        self._cell_over(session, self.requests[report.cell_id], CellPhase(report.phase))

    def _end_ranks(self, name: str, why: str) -> None:
        """End the processes of the session's ranks and with them the running cell; what the first to fail said is its outcome."""
        group = self.ranks.groups[name]
        self.ranks.drop(name)
        self._emit(Kind.NOTICE, {"text": why, "level": "warning"})
        self._ranks_over(group)

    def _look_at_ranks(self, beat: Beat) -> None:
        for group, rank in self.ranks.all(node=beat.node):
            seen = beat.drivers.get(rank.name)
            if (
                seen
                and seen.get("start") == group.start
                and seen.get("state") == "exited"
                and self.ranks.groups.get(group.session) is group
            ):
                self._rank_ended(group, rank, seen.get("code"), seen.get("signal"))

    def _rank_ended(self, group: RankGroup, rank: Rank, code: int | None, signal: int | None) -> None:
        """A process among the ranks is gone: all stop. What runs is lost, unless another rank had failed before."""
        session, why = self.sessions[group.session], f"rank {rank.number} ended ({_how(code, signal)})"
        cell_id = session.cells[0] if session.cells and self.requests[session.cells[0]].spmd else None
        running = cell_id is not None and self.reports[cell_id].phase == CellPhase.RUNNING
        tail = self._tail(rank.node, rank.stream(group.start))
        if signal and running and self._job_again(session):
            self._fall(why, tail)
            return
        if running and group.first is not None:
            self._end_ranks(group.session, f"{why}: all ranks are ended, their variables are gone")
            return
        self.ranks.drop(group.session)
        session.stillborn += not rank.ready
        if cell_id is not None and (running or session.stillborn >= MOST_STILLBORN):
            session.stillborn = 0
            if tail:
                text = f"rank {rank.number}, the end of its log:\n{tail}\n"
                self._emit(Kind.OUTPUT, {"cell_id": cell_id, "output": {"output_type": "stream", "name": "stderr", "text": text}})
            self._report(replace(self.reports[cell_id], phase=CellPhase.LOST, ended_s=self._clock(), cause=why))
            self._cell_over(session, self.requests[cell_id], CellPhase.LOST)
        elif rank.ready:
            self._emit(Kind.NOTICE, {"text": f"{why}: all ranks are ended, their variables are gone", "level": "warning"})

    def _stop_slow_ranks(self, now: float) -> None:
        for name, group in tuple(self.ranks.groups.items()):
            if group.stop_by_s is not None and now >= group.stop_by_s:
                slow = [str(rank.number) for rank in group.ranks if rank.report is None]
                which = f"rank {slow[0]} does" if len(slow) == 1 else f"ranks {', '.join(slow)} do"
                self._end_ranks(name, f"{which} not stop: all ranks are ended, their variables are gone".capitalize())

    def _active(self) -> bool:
        return any(session.cells for session in self.sessions.values())

    # ---- clients

    def client_seen(self) -> None:
        self._client_s = max(self._client_s, self._clock())

    def keep(self, seconds: float, *, alone: bool = False) -> None:
        """Hold the GPUs until nothing has run for so long, from now. ``alone``: also if no client is there until then."""
        if alone:
            self._client_s = max(self._client_s, self._clock() + seconds - self.submission.lease_s)
        self._patience, self._patience_s, self._quiet_s = Why.KEEP, seconds, self._clock()
        self._kept_s = seconds
        self._say_deadlines()

    # ---- time

    def tick(self) -> None:
        """Look at the clock: silent nodes, gates, deadlines. Call it every second."""
        if self.end:
            return
        now = self._clock()
        for k, node in list(self.nodes.items()):
            if now - node.seen_s > SILENT_S:
                del self.nodes[k]
                self._emit(Kind.NODE, {"node": k, "host": node.beat.host, "state": "lost", "gpus": []})
                self._fell(node, f"node {k} ({node.beat.host}) has not been heard for {SILENT_S:.0f} s", self._tail(k, "ray"))
        if self.end:
            return
        if not self._ready:
            self._look_at_gates(now)
            return
        self._stop_slow_ranks(now)
        if self.end:
            return
        facts = self._facts()
        for deadline in deadlines(facts):
            if now >= deadline.at_s:
                self.finish(ENDING[deadline.what], cause(deadline.what, facts))
                return
        self._say_deadlines()

    def _look_at_gates(self, now: float) -> None:
        for gate, have in ((self._gates[GateName.CONNECTED], list(self.nodes)), (self._gates[GateName.JOINED], self._joined())):
            if late := gate.late(have, now):
                why, evidence = verdict(gate, late, {k: self._tail(k, "ray") for k in late}, now - self._began_s)
                self.finish(Ending.FAILED, why, evidence)
                return

    def _new_gates(self) -> dict[GateName, Gate]:
        now, want = self._clock(), self.submission.nodes
        connect = now + self.submission.connect_timeout_s
        return {
            GateName.CONNECTED: Gate(GateName.CONNECTED, want, connect),
            GateName.JOINED: Gate(GateName.JOINED, want, connect + self.submission.join_timeout_s),
        }

    def _facts(self) -> Facts:
        return Facts(
            joined_s=self.joined_s or self._began_s,
            time_limit_s=self.submission.time_s,
            client_s=self._client_s,
            busy_s=self.usage.busy_s,
            unreadable_s=self.usage.unreadable_s,
            cell_active=self._active(),
            quiet_s=self._quiet_s,
            patience=self._patience,
            patience_s=self._patience_s,
            lease_s=self.submission.lease_s,
        )

    def _deadlines(self) -> tuple[Deadline, ...]:
        return deadlines(self._facts()) if self._ready and not self.end else ()

    def _say_deadlines(self) -> None:
        """Announce deadlines that moved by more than a second (a client's every word moves the lease: not worth an event)."""
        wanted = tuple(d for d in self._deadlines() if d.what is not Why.LEASE or d.at_s - self._clock() < self.submission.lease_s / 2)
        before = {d.what: d.at_s for d in self._announced}
        if len(wanted) != len(before) or any(abs(before.get(d.what, 0.0) - d.at_s) > 1 for d in wanted):
            self._announced = wanted
            self._emit(Kind.DEADLINE, {"deadlines": {str(d.what): d.at_s for d in wanted}})

    # ---- ends

    def _fell(self, node: Node, why: str, evidence: str = "") -> None:
        """A node is gone. Nodes that fall together are one fall: who was not part of this attempt yet cannot end it; its gates can."""
        if node.beat.attempt == self.attempt:
            self._fall(why, evidence)

    def _fall(self, why: str, evidence: str = "") -> None:
        """All stop. With retries left all start again together; a job cell runs again from its stored inputs, others are lost."""
        if self.end:
            return
        if self.attempt > self.submission.retries:
            self.finish(Ending.FAILED, why, evidence)
            return
        self.attempt += 1
        self._ready = False
        for node in self.nodes.values():
            node.joined = False
        self._began_s = self._clock()
        self._gates = self._new_gates()
        self._emit(Kind.STATE, {"state": State.STARTING, "attempt": self.attempt, "cause": why, "evidence": evidence})
        job = (self.submission.cell or {}).get("cell_id")
        for name, session in self.sessions.items():
            for cell_id in list(session.cells):
                report = self.reports[cell_id]
                if report.phase != CellPhase.RUNNING:
                    continue
                if cell_id == job:
                    self._report(replace(report, phase=CellPhase.WAITING, attempt=self.attempt, started_s=None))
                else:
                    self._report(replace(report, phase=CellPhase.LOST, ended_s=self._clock(), cause=why))
                    session.cells.remove(cell_id)
            self._fresh_driver(name)

    def finish(self, ending: Ending, why: str, evidence: str = "") -> None:
        """Give everything back, once; the first cause stands."""
        if self.end:
            return
        now = self._clock()
        self.end = End(
            ending=ending,
            cause=why,
            evidence=evidence,
            ended_s=now,
            joined_s=self.joined_s,
            gpus=self.submission.nodes * self.submission.gpus_per_node,
            busy_gpu_s=self.usage.busy_gpu_s,
            peak_mem_bytes=self.usage.peak_mem_bytes,
            used_gpus=self.usage.used_gpus,
        )
        for session in self.sessions.values():
            for cell_id in session.cells:
                report = self.reports[cell_id]
                stopped = ending in (Ending.STOPPED, Ending.IDLE)
                self._report(replace(report, phase=CellPhase.INTERRUPTED if stopped else CellPhase.LOST, ended_s=now, cause=why))
            session.cells.clear()
        held = "" if self.joined_s is None else f" after {format_duration(now - self.joined_s)}"
        self._emit(Kind.STATE, {"state": State.ENDING, "attempt": self.attempt, "cause": f"{why}{held}"})


def _how(code: int | None, signal: int | None) -> str:
    return f"killed by signal {signal}" if signal else f"exit code {code}"

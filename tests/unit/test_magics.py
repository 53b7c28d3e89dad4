"""%%gpujob as a user of plain IPython sees it, with a stand-in for `Cluster` that is told what happens."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from jupyter_aicluster import payload
from jupyter_aicluster.cells import CellRun
from jupyter_aicluster.errors import NeverFits
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.jupyter.magics import GpuMagics, still_there
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Fit, Guess, Plan
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Ending, Observation, State, Status, Word
from jupyter_aicluster.store import Record, Store

Script = Callable[["StandIn", CellRequest, dict[str, Any]], None]


def plan_of(spec: ClusterSpec) -> Plan:
    fits = spec.gpus <= 16
    because = "16 of 16 are free" if fits else f"{spec.gpus} GPUs, this machine has 16 simulated GPUs"
    guesses = (Guess("folder /work", "--working-dir"),)
    return Plan("local", spec, 1, spec.gpus, "python -m agent", Fit.NOW if fits else Fit.NEVER, because, guesses=guesses, simulated=True)


@dataclass
class StandIn:
    """The part of `Cluster` that the magics use. ``script`` is run in a thread for every cell."""

    spec: ClusterSpec
    name: str
    world: World
    status: Status = field(default_factory=Status)
    calls: list[str] = field(default_factory=list)
    watchers: list[Callable[[Any], None]] = field(default_factory=list)
    runs: dict[str, CellRun] = field(default_factory=dict)
    heard: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    values: dict[str, Path] = field(default_factory=dict)
    said: list[Observation | Event] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ranks: int = 0  # the start number of its ranks
    namespace: dict[str, Any] = field(default_factory=dict)  # of its driver

    @property
    def record(self) -> Record:
        return Record(self.handle, self.spec, 1.0, self.world.folder / "run", self.status)

    @property
    def handle(self) -> Handle:
        return Handle("local", "0" * 12, self.name)

    def say(self, kind: str, **data: Any) -> None:
        event = Event(1, 1, time.time(), kind, data)
        for run in self.runs.values():
            run.hear(event)
        self.tell(event)

    def see(self, word: Word, state: State, reason: str = "") -> None:
        self.status = replace(self.status, state=state)
        self.tell(Observation(word, reason=reason))

    def tell(self, change: Observation | Event) -> None:
        with self.lock:
            self.said.append(change)
            for watcher in self.watchers:
                watcher(change)

    def come_up(self) -> None:
        self.see(Word.GRANTED, State.STARTING)
        self.say(Kind.STATE, state="ready", attempt=1)
        self.status = replace(self.status, state=State.READY)

    def report(self, cell: CellRequest, phase: CellPhase, **more: Any) -> None:
        self.say(Kind.CELL, **CellReport(cell.cell_id, phase, started_s=1.0, ended_s=3.0 if phase.over else None, **more).to_json())

    def give(self, cell: CellRequest, values: dict[str, Any]) -> int:
        path = self.world.folder / cell.cell_id
        with path.open("wb") as file:
            size = payload.pack_outputs(values, file).size_bytes
        self.values[cell.cell_id] = path
        return size

    def end(self, ending: Ending = Ending.DONE) -> None:
        self.say(Kind.END, ending=str(ending), cause="its job is done", ended_s=time.time(), joined_s=1.0, gpus=self.spec.gpus)
        self.see(Word.ENDED, State.ENDED)

    # -- as `Cluster`

    def watch(self, on_change: Callable[[Any], None]) -> Callable[[], None]:
        with self.lock:
            for change in self.said:
                on_change(change)
            self.watchers.append(on_change)
        return lambda: self.watchers.remove(on_change)

    def cell(self, request: CellRequest, inputs: Path | None) -> CellRun:
        self.calls.append(f"cell {request.label}")
        run = self.run_of(request.cell_id)
        self.world.start(self, request, inputs)
        return run

    def run_of(self, cell_id: str) -> CellRun:
        return self.runs.setdefault(cell_id, CellRun(cell_id))

    def value(self, cell_id: str) -> Path:
        return self.values[cell_id]

    def gathered(self, report: CellReport) -> dict[str, list[Any]]:
        return {name: [f"{name} of {rank}" for rank in range(report.ranks)] for name in report.gathered}

    def snapshot(self) -> dict[str, Any]:
        names = {name: [type(value).__name__, 8] for name, value in self.namespace.items() if name != "__builtins__"}
        sessions = {self.world.requests[0].session: {"ranks": self.ranks, "names": names}} if self.world.requests else {}
        return {"sessions": sessions, "cells": {}}

    def reset(self, session: str) -> None:
        self.calls.append(f"reset {session == self.world.requests[0].session}")
        self.ranks = 0

    def interrupt(self, cell_id: str) -> None:
        self.calls.append("interrupt")
        self.heard.put("interrupt")

    def stop(self, wait_s: float = 30.0) -> bool:
        self.calls.append("stop")
        self.end(Ending.STOPPED)
        return True


@dataclass
class World:
    """What `Cluster.ask` finds."""

    folder: Path
    script: Script
    asked: list[dict[str, Any]] = field(default_factory=list)
    clusters: list[StandIn] = field(default_factory=list)
    requests: list[CellRequest] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, cluster: StandIn, request: CellRequest, inputs: Path | None) -> None:
        values: dict[str, Any] = {}
        if inputs is not None:
            with inputs.open("rb") as file:
                values = payload.unpack(file)
        self.requests.append(request)
        self.inputs.append(values)
        thread = threading.Thread(target=self.script, args=(cluster, request, values))
        self.threads.append(thread)
        thread.start()

    def ask(
        self,
        spec: ClusterSpec,
        *,
        on_plan: Callable[[Plan], None],
        cell: CellRequest | None = None,
        payload: Path | None = None,
        **more: Any,
    ) -> StandIn:
        self.asked.append(more)
        plan = plan_of(spec)
        on_plan(plan)
        if plan.fit is Fit.NEVER:
            raise NeverFits(plan.because, hint="ask for less")
        cluster = StandIn(spec, f"fox{len(self.clusters) or ''}", self)
        self.clusters.append(cluster)
        if cell is not None:
            cluster.run_of(cell.cell_id)
            self.start(cluster, cell, payload)
        return cluster

    def plan(self, spec: ClusterSpec, **_: Any) -> Plan:
        return plan_of(spec)


class Notebook:
    """A shell with the magics, whose world does what ``script`` says."""

    def __init__(self, world: World, magics: GpuMagics, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self.magics, self.shell, self._capsys = world, magics, magics.shell, capsys

    def run(self, source: str) -> tuple[str, ExecutionResult]:
        """(everything printed, without colours, result)."""
        result = self.shell.run_cell(source, store_history=True)
        for thread in self.world.threads:
            thread.join(10)
        printed = self._capsys.readouterr()
        return re.sub(r"\x1b\[[\d;]*m", "", printed.out + printed.err), result


def succeed(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    """A driver that computes in a namespace of its own what the cell says."""
    if cluster.status.state is not State.READY:
        cluster.see(Word.QUEUED, State.QUEUED, "Waiting for 4 GPUs: 2 of 16 are free")
        cluster.come_up()
    cluster.report(cell, CellPhase.RUNNING)
    cluster.say(Kind.OUTPUT, cell_id=cell.cell_id, output={"output_type": "stream", "name": "stdout", "text": "epoch 1\n"})
    cluster.namespace.update(inputs)
    exec(cell.code, cluster.namespace)
    values = {name: cluster.namespace[name] for name in cell.outputs if name in cluster.namespace}
    cluster.report(cell, CellPhase.DONE, names=tuple(values), value_bytes=cluster.give(cell, values), admitted=True)
    if not cell.after_success_s:
        cluster.end()


def fail(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    cluster.come_up()
    cluster.report(cell, CellPhase.RUNNING)
    error = {
        "ename": "ZeroDivisionError",
        "evalue": "division by zero",
        "traceback": ["<In [1]> in y = 1 / 0", "ZeroDivisionError: division by zero"],
    }
    cluster.report(cell, CellPhase.FAILED, error=error, names=("x",), value_bytes=cluster.give(cell, {"x": 1}), admitted=True)
    cluster.namespace["x"] = 1


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell()
    made.colors = "nocolor"
    yield made
    made.history_manager.end_session()


@pytest.fixture
def notebook(
    request: pytest.FixtureRequest,
    shell: InteractiveShell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Notebook:
    world = World(tmp_path, getattr(request, "param", succeed))
    monkeypatch.setattr("jupyter_aicluster.cluster.Cluster", world)
    magics = GpuMagics(shell)
    magics.notebook.options = lambda: Options(home=tmp_path)
    shell.register_magics(magics)
    return Notebook(world, magics, capsys)


def test_a_cell_behaves_as_if_it_had_run_here(notebook: Notebook) -> None:
    notebook.run("n = 20")
    printed, result = notebook.run("%%gpujob --gpus 4  # four\ny = n * 2 + 2")
    assert result.success
    assert notebook.shell.user_ns["y"] == 42
    assert notebook.world.inputs[0]["n"] == 20
    request = notebook.world.requests[0]
    assert (request.code, request.outputs, request.label, request.after_success_s) == ("y = n * 2 + 2\n", ("y",), "In [2]", 0.0)
    lines = printed.splitlines()
    assert lines[0] == "local: folder /work (--working-dir) · limit 1:00:00 (-t)"
    assert "epoch 1" in lines
    assert "[fox] Done after 2 s · 4 GPUs given back" in lines
    assert any(" held" in line and line.startswith("[fox] ") for line in lines)


def in_ranks(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    cluster.come_up()
    cluster.ranks = cluster.ranks or 1
    cluster.report(cell, CellPhase.RUNNING, per=cell.spmd, ranks=4)
    values = {name: [name] for name in cell.outputs if name not in cell.gather}
    size = cluster.give(cell, values)
    cluster.report(cell, CellPhase.DONE, per=cell.spmd, ranks=4, names=tuple(values), gathered=cell.gather, value_bytes=size)


@pytest.mark.parametrize("notebook", [in_ranks], indirect=True)
def test_what_ranks_have_is_not_sent_over_what_each_has_made_of_it(notebook: Notebook) -> None:
    notebook.run("a = [1]")
    notebook.run("%%gpujob --gpus 4 --spmd --gather loss --keep 30m\nmodel = a\nloss = 0")
    assert notebook.shell.user_ns["loss"] == ["loss of 0", "loss of 1", "loss of 2", "loss of 3"]
    assert notebook.shell.user_ns["model"] == ["model"]
    sent = [set(notebook.world.inputs[0])]
    for change in ("", "a.append(2)", "model = 3", "%gpujob reset"):
        notebook.run(change)
        notebook.run("%%gpujob --spmd\nx = (a, model, loss)")
        sent.append(set(notebook.world.inputs[-1]))
    assert sent == [{"a"}, set(), {"a"}, {"model"}, {"a", "model", "loss"}]
    assert "reset True" in notebook.world.clusters[0].calls


@pytest.mark.parametrize("notebook", [in_ranks], indirect=True)
def test_names_of_the_ranks_are_not_the_drivers(notebook: Notebook) -> None:
    notebook.run("%%gpujob --gpus 4 --spmd --keep 30m\nmodel = 1")
    notebook.shell.user_ns.pop("model")
    _, known = notebook.run("%%gpujob --spmd\nx = model")
    assert known.success
    notebook.shell.user_ns.pop("model", None)
    _, stranger = notebook.run("%%gpujob\nx = model")
    assert type(stranger.error_in_exec).__name__ == "NameMissing"


@pytest.mark.parametrize("notebook", [fail], indirect=True)
def test_a_failed_cell_shows_the_remote_traceback_and_its_names_come_back(notebook: Notebook) -> None:
    printed, result = notebook.run("%%gpujob --gpus 2\nx = 1\ny = 1 / 0")
    assert type(result.error_in_exec).__name__ == "ZeroDivisionError"
    assert notebook.shell.user_ns["x"] == 1
    assert "<In [1]> in y = 1 / 0\nZeroDivisionError: division by zero" in printed
    assert "jupyter_aicluster" not in printed  # none of our own frames
    assert "[fox] Failed after 2 s · 2 GPUs held: mend the cell and run it again\n[fox] ZeroDivisionError: division by zero\n" in printed


@pytest.mark.parametrize("notebook", [fail], indirect=True)
def test_a_mended_cell_runs_again_on_the_held_gpus_which_then_go_back(notebook: Notebook) -> None:
    notebook.run("%%gpujob --gpus 2\nx = 1\ny = 1 / 0")
    notebook.world.script = succeed
    _, result = notebook.run("%%gpujob --gpus 2\ny = x + 1")
    assert result.success
    assert notebook.shell.user_ns["y"] == 2
    assert len(notebook.world.clusters) == 1
    assert notebook.world.clusters[0].calls == ["cell In [2]"]
    assert notebook.world.clusters[0].status.ended


@pytest.mark.parametrize("notebook", [fail], indirect=True)
def test_new_and_larger_requirements_ask_for_another_cluster(notebook: Notebook) -> None:
    notebook.run("%%gpujob --gpus 2\ny = 1 / 0")
    notebook.world.script = succeed
    notebook.run("%%gpujob --gpus 4\ny = 1")
    notebook.run("%%gpujob --gpus 2 --new\ny = 1")
    assert [cluster.spec.gpus for cluster in notebook.world.clusters] == [2, 4, 2]


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%%gpujob --gpu 4\ny = 1", "did you mean --gpus?"),
        ("%%gpujob --gpus 24\ny = 1", "24 GPUs, this machine has 16"),
        ("%%gpujob\ny = 1", "--gpus is never guessed"),
        ("%%gpujob --gpus 4\ny = nowhere + 1", "name 'nowhere' is not defined"),
        ("%%gpujob --gpus 4 --in nowhere\ny = 1", "no variable 'nowhere'"),
        ("lock = open('/dev/null')\nget_ipython().run_cell_magic('gpujob', '--gpus 4', 'y = lock.name')", "lock cannot travel"),
        ("big = bytes(3_000_000)\nget_ipython().run_cell_magic('gpujob', '--gpus 4 --max-ship 1M', 'y = len(big)')", "--max-ship"),
        ("%%gpujob --gpus 4\ny = = 1", "syntax"),
        ("%%gpujob --gpus 4 --working-dir /no/such\ny = 1", "no such folder"),
        ("%%gpujob --gpus 4\n   ", "the cell is empty"),
        ("%gpujob usr", "%gpujob use"),
    ],
)
def test_one_clear_error_and_nothing_submitted(notebook: Notebook, cell: str, says: str) -> None:
    printed, result = notebook.run(cell)
    assert not result.success
    assert says in printed
    assert "Nothing was submitted." in printed
    assert "Traceback" not in printed
    assert not notebook.world.clusters
    assert not list((notebook.world.folder / "tmp").glob("*"))


def test_inputs_are_removed_from_the_temporary_folder(notebook: Notebook) -> None:
    notebook.run("n = 1")
    notebook.run("%%gpujob --gpus 1\ny = n")
    assert list((notebook.world.folder / "tmp").iterdir()) == []


def test_dry_run_and_plan_submit_nothing(notebook: Notebook) -> None:
    for line in ("%%gpujob --gpus 4 --dry-run\ny = 1", "%gpujob plan --gpus 4"):
        printed, result = notebook.run(line)
        assert result.success
        assert "4 simulated GPUs from local: one node\n" in printed
        assert "Fits now: 16 of 16 are free" in printed
        assert "python -m agent" in printed
    assert not notebook.world.clusters


def wait_in_queue(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    cluster.see(Word.QUEUED, State.QUEUED, "Waiting for 4 GPUs")
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("notebook", [wait_in_queue], indirect=True)
def test_interrupt_while_queued_cancels_the_request(notebook: Notebook) -> None:
    printed, result = notebook.run("%%gpujob --gpus 4\ny = 1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert notebook.world.clusters[0].calls == ["stop"]
    assert "KeyboardInterrupt: the request was given back; the cell did not run" in printed


def run_until_interrupted(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    cluster.come_up()
    cluster.report(cell, CellPhase.RUNNING)
    os.kill(os.getpid(), signal.SIGINT)
    assert cluster.heard.get(timeout=10) == "interrupt"
    error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt: "]}
    cluster.report(cell, CellPhase.INTERRUPTED, error=error)


@pytest.mark.parametrize("notebook", [run_until_interrupted], indirect=True)
def test_interrupt_while_running_interrupts_the_cell_and_waits_for_its_word(notebook: Notebook) -> None:
    printed, result = notebook.run("%%gpujob --gpus 4\nwhile True: pass")
    assert type(result.error_in_exec).__name__ == "KeyboardInterrupt"
    assert notebook.world.clusters[0].calls == ["interrupt"]
    assert "[fox] Interrupted after 2 s · 4 GPUs held" in printed


def lose(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    cluster.come_up()
    cluster.report(cell, CellPhase.LOST, cause="its driver ended (killed by signal 9)")


@pytest.mark.parametrize("notebook", [lose], indirect=True)
def test_a_lost_cell_says_why_and_what_to_do(notebook: Notebook) -> None:
    printed, _ = notebook.run("%%gpujob --gpus 4\ny = 1")
    assert "the cell did not finish on fox: its driver ended (killed by signal 9)" in printed
    assert "%gpujob logs fox" in printed


def test_up_keeps_a_cluster_for_the_cells_that_follow(notebook: Notebook) -> None:
    up = threading.Thread(target=lambda: _when(lambda: notebook.world.clusters, lambda: notebook.world.clusters[0].come_up()))
    up.start()
    printed, result = notebook.run("%gpujob up --gpus 4")
    up.join(10)
    assert result.success
    assert "[fox] Ready · 4 GPUs held" in printed
    notebook.run("%%gpujob\na = 1")
    notebook.run("%%gpujob --gpus 2\nb = a + 1")
    cluster = notebook.world.clusters[0]
    assert cluster.calls == ["cell In [2]", "cell In [3]"]
    assert not cluster.status.ended
    assert notebook.shell.user_ns["b"] == 2
    assert notebook.run("%gpujob down")[0].endswith("fox: its GPUs are back\n")


def _when(ready: Callable[[], Any], act: Callable[[], None]) -> None:
    deadline = time.monotonic() + 10
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.005)
    act()


@pytest.mark.parametrize(("flags", "retries"), [("", 2), ("--retries 0", 0), ("--keep 5m", 0), ("--keep 5m --retries 1", 1)])
def test_jobs_start_again_when_a_node_falls_and_kept_clusters_when_told_to(notebook: Notebook, flags: str, retries: int) -> None:
    notebook.run(f"%%gpujob --gpus 4 {flags}\ny = 1")
    assert notebook.world.asked[0]["retries"] == retries


@pytest.mark.parametrize("notebook", [fail], indirect=True)
def test_retries_on_a_cluster_that_is_there_are_answered(notebook: Notebook) -> None:
    notebook.run("%%gpujob --gpus 2\ny = 1 / 0")
    notebook.world.script = succeed
    printed, result = notebook.run("%%gpujob --gpus 2 --retries 1\ny = 1")
    assert result.success
    assert "this cell is not started again" in printed


def test_modules_and_functions_of_modules_are_not_expected_back(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, ...]] = []
    monkeypatch.setattr("jupyter_aicluster.jupyter.held.Held.board", lambda self, shell, cell, sent, results: shown.extend([sent, results]))
    notebook.run("import random\nitems = [1]")
    notebook.run("%%gpujob --gpus 4\nrandom.seed(3)\nitems.append(2)\ny = 1")
    assert shown == [("items",), ("items", "y")]


def test_without_a_display_the_output_is_that_of_the_code(notebook: Notebook) -> None:
    options = Options(home=notebook.world.folder, display="none")
    notebook.magics.notebook.options = lambda: options
    printed, result = notebook.run("%%gpujob --gpus 4\ny = 1")
    assert result.success
    assert printed == "epoch 1\n"


def test_what_was_guessed_is_said_once(notebook: Notebook) -> None:
    first, second = (notebook.run("%%gpujob --gpus 4\ny = 1")[0] for _ in range(2))
    assert "folder /work (--working-dir)" in first
    assert "--working-dir" not in second


def test_attach_shows_the_end_of_the_latest_cluster_again(notebook: Notebook) -> None:
    notebook.run("%%gpujob --gpus 4\ny = 1")
    notebook.run("y = 5")
    printed, result = notebook.run("%gpujob attach")
    assert result.success
    assert "[fox] Done after 2 s · 4 GPUs given back" in printed
    assert notebook.shell.user_ns["y"] == 5  # it was brought back before: not again


def test_attach_brings_back_what_ended_while_nobody_was_here(notebook: Notebook) -> None:
    notebook.run("%%gpujob --gpus 4\ny = 1")
    held = notebook.magics.notebook.find(None, ended=True)
    held.seen.clear()
    notebook.run("del y")
    _, result = notebook.run("%gpujob attach")
    assert result.success
    assert notebook.shell.user_ns["y"] == 1


def test_defaults_belong_to_the_notebook(notebook: Notebook) -> None:
    assert "--queue gpu" in notebook.run("%gpujob defaults -p gpu")[0]
    notebook.run("%%gpujob --gpus 1\ny = 1")
    assert notebook.world.clusters[0].spec.queue == "gpu"


def test_dollar_and_braces_reach_us_as_typed(notebook: Notebook) -> None:
    notebook.run("n = 3")
    notebook.run("%%gpujob --gpus {n} --env A=$n{n}\ny = 1")
    spec = notebook.world.clusters[0].spec
    assert (spec.gpus, spec.env) == (3, (("A", "$n{n}"),))


def test_help_is_shown_for_the_magic(notebook: Notebook) -> None:
    found = notebook.shell.object_inspect_text("%%gpujob") if hasattr(notebook.shell, "object_inspect_text") else ""
    assert "--gpus-per-node" in (found or GpuMagics.gpujob.__doc__)


def test_large_inputs_are_mentioned(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_aicluster.jupyter.shipping.QUIET_BYTES", 1000)
    notebook.run("data = bytes(5000)")
    assert "sending 5." in notebook.run("%%gpujob --gpus 1\ny = len(data)")[0]


def test_loading_imports_neither_ray_nor_the_client() -> None:
    code = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell();"
        "shell.run_line_magic('load_ext', 'jupyter_aicluster');"
        "print([name for name in ('ray', 'aiohttp', 'kubernetes', 'dask', 'anywidget', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_on_load_living_clusters_are_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name, uid in (("fox", "a" * 12), ("owl", "b" * 12)):
        run = store.run(uid)
        run.create()
        store.put(Record(Handle("local", uid, name), ClusterSpec(gpus=4), 1.0, run.path))
    store.run("b" * 12).end.write_text("{}")
    assert still_there(Options(home=tmp_path)) == ["fox (4 GPUs, local) is still yours: %gpujob attach fox"]
    assert still_there(Options(home=tmp_path / "none")) == []


def test_what_did_not_change_is_not_sent_again_to_a_held_cluster(notebook: Notebook) -> None:
    notebook.run("data, config = [1, 2], {'lr': 1}")
    notebook.run("%%gpujob --gpus 4 --keep 30m\ny = len(data) * config['lr']")
    notebook.run("config['lr'] = 3")
    notebook.run("%%gpujob\nz = y + len(data) * config['lr']")
    notebook.run("%%gpujob --in data\nz = y + len(data)")
    assert notebook.world.inputs == [{"data": [1, 2], "config": {"lr": 1}}, {"config": {"lr": 3}}, {"data": [1, 2]}]
    assert notebook.world.requests[1].based == dict.fromkeys(("data", "config", "y"), notebook.world.requests[0].cell_id)
    assert notebook.shell.user_ns["z"] == 4


def test_after_the_driver_was_lost_everything_is_sent_anew(notebook: Notebook) -> None:
    notebook.run("data = [1]")
    notebook.run("%%gpujob --gpus 4 --keep 30m\ny = len(data)")
    cluster = notebook.world.clusters[0]
    cluster.say(Kind.NOTICE, text="its variables are gone", level="warning", fresh="another session")
    notebook.run("%%gpujob\ny = len(data)")
    cluster.say(Kind.NOTICE, text="its variables are gone", level="warning", fresh=notebook.world.requests[0].session)
    notebook.run("%%gpujob\ny = len(data)")
    assert [set(sent) for sent in notebook.world.inputs] == [{"data"}, set(), {"data"}]


def refuse(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    cluster.report(cell, CellPhase.FAILED, error={"ename": "NameConflict", "evalue": "x", "traceback": ["x"]}, lacks=("y",))


def test_what_the_driver_did_not_take_is_sent_again(notebook: Notebook) -> None:
    notebook.run("data = [1]")
    notebook.run("%%gpujob --gpus 4 --keep 30m\ny = len(data)")
    notebook.run("data.append(2)")
    notebook.world.script = refuse
    _, result = notebook.run("%%gpujob\ny = y + len(data)")
    assert type(result.error_in_exec).__name__ == "NameConflict"
    notebook.world.script = succeed
    notebook.run("%%gpujob\ny = y + len(data)")
    assert notebook.world.inputs[1:] == [{"data": [1, 2]}, {"data": [1, 2], "y": 1}]
    assert notebook.shell.user_ns["y"] == 3


def test_vars_shows_what_is_there_and_fetch_brings_it(notebook: Notebook) -> None:
    notebook.run("%%gpujob --gpus 4 --keep 30m --out y\nx = [1]\ny = 2")
    printed, _ = notebook.run("%gpujob vars")
    assert [line.split() for line in printed.splitlines()] == [["NAME", "TYPE", "SIZE"], ["x", "list", "8", "B"], ["y", "int", "8", "B"]]
    assert "x" not in notebook.shell.user_ns
    _, result = notebook.run("%gpujob fetch x")
    assert result.success
    assert notebook.shell.user_ns["x"] == [1]
    assert notebook.world.requests[-1].theirs == ("x",)
    printed, result = notebook.run("%gpujob fetch nowhere")
    assert not result.success
    assert "has no variable 'nowhere'" in printed


def leave_behind(cluster: StandIn, cell: CellRequest, inputs: dict[str, Any]) -> None:
    cluster.come_up()
    path = cluster.world.folder / "stored"

    def store(name: str, value: Any) -> str:
        with path.open("wb") as file:
            payload.pack_outputs({name: value}, file)
        cluster.values["stored"] = path
        return "stored"

    with (cluster.world.folder / cell.cell_id).open("wb") as file:
        size = payload.pack_outputs({"big": bytes(5000)}, file, 1000, store).size_bytes
    cluster.values[cell.cell_id] = cluster.world.folder / cell.cell_id
    cluster.report(cell, CellPhase.DONE, names=("big",), value_bytes=size, admitted=True)
    cluster.end()


@pytest.mark.parametrize("notebook", [leave_behind], indirect=True)
def test_a_large_output_can_be_fetched_after_its_cluster_has_ended(notebook: Notebook) -> None:
    printed, _ = notebook.run("%%gpujob --gpus 4\nbig = bytes(5000)")
    assert "<big: bytes, 5.0 kB, in its cluster's storage. big.fetch() brings it here.> %gpujob fetch big puts it here" in printed
    assert notebook.world.clusters[0].status.ended
    assert notebook.shell.user_ns["big"].fetch() == bytes(5000)
    _, result = notebook.run("%gpujob fetch big")
    assert result.success
    assert notebook.shell.user_ns["big"] == bytes(5000)

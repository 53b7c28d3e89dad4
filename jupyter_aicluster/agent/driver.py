"""A session's driver: one warm process on node 0, connected to Ray, that runs the session's cells one after another.

A rank of its ``--spmd`` cells is the same kind of process, on any node and without a connection to Ray.

Cells run in the main thread, so that an interrupt reaches their code; the hub is talked to in a thread of its own.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import logging
import os
import queue
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any

from jupyter_aicluster import job, payload, pickling
from jupyter_aicluster.agent.driverlink import DriverLink, RefusedError
from jupyter_aicluster.agent.namespace import Changes, Missing, Names, fresh_main
from jupyter_aicluster.agent.outputs import Outputs, Stream
from jupyter_aicluster.agent.rayside import RaySide
from jupyter_aicluster.agent.shell import Outcome, Shell, install_streams, make_shell
from jupyter_aicluster.errors import AIClusterError
from jupyter_aicluster.events import Kind
from jupyter_aicluster.names import analyse
from jupyter_aicluster.protocol import CellPhase, CellReport, CellRequest, Order, Submission
from jupyter_aicluster.rundir import RunDir, read_json
from jupyter_aicluster.tls import pinned_context

_log = logging.getLogger(__name__)
_HOLD = ""  # among the cells to run: take the GPUs in Ray's books
_NOTHING = payload.Packed(0, "", ())
_LAST_WORDS = 4000  # characters of stderr that a failing rank shows


class LastWords:
    """The end of what a rank's cell wrote to stderr: all that is shown of it, and only where it fails."""

    def __init__(self) -> None:
        self._text = ""

    def hear(self, cell_id: str, output: Mapping[str, Any]) -> None:
        if output.get("name") == "stderr":
            self._text = (self._text + str(output["text"]))[-_LAST_WORDS:]

    def take(self) -> str:
        text, self._text = self._text, ""
        return text


class Driver:
    """``shell`` and ``ray`` may come later than the first orders: cells wait for them.

    ``rank``: which one this process is; ``words``: what it wrote to stderr, where its output is not the cell's.
    """

    def __init__(self, run: RunDir, link: DriverLink, outputs: Outputs, rank: int | None = None, words: LastWords | None = None) -> None:
        self._run = run
        self._submission = Submission.from_json(read_json(run.submission) or {})
        self._link = link
        self._outputs = outputs
        self._rank, self._words = rank, words
        self._cells: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen: set[str] = set()
        self._guard = threading.Lock()
        self._running: str | None = None  # the cell that an interrupt may reach
        self._interrupted: dict[str, int] = {}  # cell → how often
        self._whole = False
        self._names = Names({})  # of the session, from `serve` on
        self._pid = os.getpid()

    def order(self, order: Mapping[str, Any]) -> None:
        """An order of the hub, which may say the same again. Called in the link's thread."""
        what, cell_id = order.get("order"), str(order.get("cell_id", ""))
        if what == Order.INTERRUPT and int(order.get("n", 1)) > self._interrupted.get(cell_id, 0):
            with self._guard:
                self._interrupted[cell_id] = int(order.get("n", 1))
                if cell_id == self._running:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if what in (Order.RUN, Order.INTERRUPT) and cell_id not in self._seen:  # interrupted before it began here: it still has to end
            self._seen.add(cell_id)
            self._cells.put(cell_id)
        elif what == Order.HOLD:
            self._cells.put(_HOLD)

    def serve(self, main: Mapping[str, Any], shell: Shell, ray: RaySide | None) -> None:
        """Run cells for ever, in the main thread."""
        self._names = Names(sys.modules["__main__"].__dict__)
        while True:
            cell_id = self._cells.get()
            if cell_id == _HOLD:
                self._hold(ray)
            else:
                self._cell(cell_id, main, shell, ray)

    def _hold(self, ray: RaySide | None) -> None:
        """Take the GPUs for the ranks in Ray's books, which may have to wait for tasks and actors of earlier cells; the hub is told."""

        def held() -> None:
            self._link.post("driver", {"ready": True, "holds": True})

        if ray is None:
            held()
        else:
            self._look_whole(ray)
            ray.hold_gpus(self._submission.nodes, self._submission.gpus_per_node, held, self._warn)

    def _look_whole(self, ray: RaySide) -> None:
        if not self._whole:
            self._whole = True
            if differs := ray.wait_whole(self._submission.nodes, self._submission.nodes * self._submission.gpus_per_node):
                self._warn(differs)

    def _warn(self, text: str) -> None:
        self._link.post(Kind.NOTICE, {"text": text, "level": "warning"})

    def _cell(self, cell_id: str, main: Mapping[str, Any], shell: Shell, ray: RaySide | None) -> None:
        try:
            request = CellRequest.from_json(self._link.request(cell_id))
        except RefusedError as error:
            _log.error("cell %s: %s", cell_id, error)
            return
        self._link.post(Kind.CELL, CellReport(cell_id, CellPhase.RUNNING, label=request.label).to_json())
        if ray is not None:
            ray.give_up_waiting()
            self._look_whole(ray)
        try:
            self._environment(cell_id)
            self._names.admit(request, self._inputs(request))
        except (AIClusterError, OSError) as error:  # OSError: no room
            lacks = error.names if isinstance(error, Missing) else ()
            self._report(request, Outcome(error, str(error).splitlines()), lacks=lacks)
            return
        self._names.look(request)
        namespace = sys.modules["__main__"].__dict__
        self._outputs.begin(cell_id)
        began_s = time.time()
        with ray.watching(self._warn) if ray is not None else nullcontext():
            outcome = self._execute(request, shell)
        if isinstance(outcome.exception, KeyboardInterrupt) and ray is not None:
            ray.stop_work(began_s)
        self._outputs.end()
        self._link.post("names", self._names.overview())
        changes = self._names.changes(request, () if outcome.failed else _assigned(shell, request.code))
        if request.spmd:  # rank 0 speaks for all, but for what is gathered
            mine = () if self._rank else [name for name in request.outputs if name not in request.gather]
            changes = Changes({name: value for name, value in changes.back.items() if name in mine})
        gathered = {} if outcome.failed else {name: namespace[name] for name in request.gather if name in namespace}
        if self._words is not None and (text := self._words.take()) and outcome.failed:
            self._link.post(Kind.OUTPUT, {"cell_id": cell_id, "output": {"output_type": "stream", "name": "stderr", "text": text}})
        packed = self._send_values(request, changes.back, cell_id)
        if not packed.stayed:
            self._names.sent(cell_id, changes)
        rest = self._send_values(request, gathered, f"{cell_id}.rank-{self._rank}")
        self._report(request, outcome, packed, rest, admitted=True, along=changes.along, deleted=changes.deleted)

    def _execute(self, request: CellRequest, shell: Shell) -> Outcome:
        number = re.search(r"\d+", request.label)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # before anybody may send one
            with self._guard:
                if request.cell_id in self._interrupted:
                    raise KeyboardInterrupt
                self._running = request.cell_id
            outcome = shell.run(request.code, request.filename, int(number[0]) if number else 1)
            signal.signal(signal.SIGINT, _nothing)
        except KeyboardInterrupt as error:  # in the moment before or after the user's code
            outcome = Outcome(error)
        if os.getpid() != self._pid:  # a child that the cell forked and that came here like its parent: it speaks to nobody
            os._exit(1 if outcome.failed else 0)
        signal.signal(signal.SIGINT, _nothing)
        with self._guard:
            self._running = None
        return outcome

    def _environment(self, cell_id: str) -> None:
        """What `jupyter_aicluster.job` reads."""
        folder = self._run.checkpoints / cell_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ.update(AICLUSTER_CHECKPOINT_DIR=str(folder), AICLUSTER_CELL=cell_id, AICLUSTER_NODES=str(self._submission.nodes))

    def _inputs(self, request: CellRequest) -> Mapping[str, Any]:
        if request.inputs is None:
            return {}
        with tempfile.TemporaryDirectory(prefix="inputs-", dir=os.environ.get("AICLUSTER_SCRATCH")) as folder:
            path = Path(folder, request.inputs)
            try:
                self._link.download(request.inputs, path)
            except RefusedError as error:
                raise AIClusterError(
                    "the inputs of the cell are not on the cluster", evidence=str(error), hint="run the cell again"
                ) from error
            with path.open("rb") as file:
                return payload.unpack(file)

    def _send_values(self, request: CellRequest, values: Mapping[str, Any], to: str) -> payload.Packed:
        if not values:
            return _NOTHING
        try:
            with _scratch_file() as file:
                packed = payload.pack_outputs(values, file, request.max_output_bytes, partial(self._store, to))
                file.flush()
                self._link.upload_values(to, Path(file.name))
        except (OSError, RefusedError) as error:
            text = f"{', '.join(values)} stayed on the cluster, where they still are: there is no room for them ({error})"
            self._warn(text)
            return payload.Packed(0, "", (), stayed=tuple(values))
        return packed

    def _store(self, cell_id: str, name: str, value: Any) -> str:
        """Put one large value into the cluster's storage; the key that it has there."""
        key = f"{cell_id}.{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        with _scratch_file() as file:
            payload.pack_outputs({name: value}, file)
            file.flush()
            try:
                self._link.upload_values(key, Path(file.name))
            except RefusedError as error:
                raise OSError(str(error)) from error
        return key

    def _report(
        self, request: CellRequest, outcome: Outcome, packed: payload.Packed = _NOTHING, gathered: payload.Packed = _NOTHING, **more: Any
    ) -> None:
        phase = CellPhase.DONE
        if outcome.failed:
            stopped = isinstance(outcome.exception, KeyboardInterrupt) and request.cell_id in self._interrupted
            phase = CellPhase.INTERRUPTED if stopped else CellPhase.FAILED
        report = CellReport(
            request.cell_id,
            phase,
            label=request.label,
            names=packed.names + packed.stubs,
            gathered=gathered.names + gathered.stubs,
            stayed=packed.stayed,
            value_bytes=packed.size_bytes + gathered.size_bytes,
            error=outcome.error() if outcome.failed else None,
            **more,
        )
        self._link.post(Kind.CELL, report.to_json())


def _scratch_file() -> IO[bytes]:
    return tempfile.NamedTemporaryFile(prefix="values-", dir=os.environ.get("AICLUSTER_SCRATCH"))


def _assigned(shell: Shell, code: str) -> frozenset[str]:
    """What a cell that ended normally has assigned, even where it is the same object as before."""
    try:
        return analyse(shell.plain(code)).always
    except AIClusterError:  # no Python after all: then only what is another object, or changed, comes back
        return frozenset()


def _nothing(number: int, frame: object) -> None:
    """SIGINT while no cell runs. Not SIG_IGN, which child processes would inherit."""


def _hub_url(run: RunDir) -> str:
    found = read_json(run.hub)
    if found is None:
        raise SystemExit("the hub has not said where it listens")
    return f"https://{found['host']}:{found['port']}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="driver")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--session", required=True)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--start", type=int, default=int(os.environ.get("AICLUSTER_DRIVER_START", "1")))
    options = parser.parse_args(argv)

    log = os.dup(1)
    faulthandler.enable(file=log)
    ours = logging.getLogger("jupyter_aicluster")
    ours.addHandler(logging.StreamHandler(open(log, "w", closefd=False)))  # noqa: SIM115 - a descriptor, for good
    ours.propagate = False
    signal.signal(signal.SIGINT, _nothing)
    run = RunDir(options.run)
    url = os.environ.get("AICLUSTER_HUB") or _hub_url(run)
    tls = pinned_context(run.hub_cert) if url.startswith("https:") else None
    link = DriverLink(url, options.session, options.start, run.hub_token.read_text().strip(), tls)
    words = LastWords() if options.rank else None  # rank 0 speaks for all
    emit = words.hear if words else lambda cell_id, output: link.post(Kind.OUTPUT, {"cell_id": cell_id, "output": output})
    outputs = Outputs(emit, log)
    if words is None:
        job._reporter = lambda text: link.post(Kind.NOTICE, {"text": text, "level": "info"})
    driver = Driver(run, link, outputs, options.rank, words)
    outputs.capture()
    install_streams(Stream(outputs, "stdout"), Stream(outputs, "stderr"))
    link.start(driver.order)
    ray = RaySide.connect() if "RAY_ADDRESS" in os.environ and options.rank is None else None
    link.post("driver", {"ready": True})
    module = fresh_main()
    shell = make_shell(module, outputs)
    pickling.cloudpickle()
    sys.path.insert(0, "")  # the notebook's folder, as in a kernel, now that what we need is imported: it may hold a json.py
    driver.serve(module.__dict__, shell, ray)


if __name__ == "__main__":
    main()

"""A session's driver: one warm process on node 0, connected to Ray, that runs the session's cells one after another.

Cells run in the main thread, so that an interrupt reaches their code; the hub is talked to in a thread of its own.
"""

from __future__ import annotations

import argparse
import faulthandler
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
from pathlib import Path
from typing import Any

from jupyter_aicluster import job, payload, pickling
from jupyter_aicluster.agent.driverlink import DriverLink, RefusedError
from jupyter_aicluster.agent.namespace import Before, fresh_main
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


class Driver:
    """``shell`` and ``ray`` may come later than the first orders: cells wait for them."""

    def __init__(self, run: RunDir, link: DriverLink, outputs: Outputs) -> None:
        self._run = run
        self._submission = Submission.from_json(read_json(run.submission) or {})
        self._link = link
        self._outputs = outputs
        self._cells: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen: set[str] = set()
        self._guard = threading.Lock()
        self._running: str | None = None  # the cell that an interrupt may reach
        self._interrupted: dict[str, int] = {}  # cell → how often
        self._whole = False
        self._pid = os.getpid()

    def order(self, order: Mapping[str, Any]) -> None:
        """An order of the hub, which may say the same again. Called in the link's thread."""
        cell_id = str(order.get("cell_id", ""))
        if order.get("order") == Order.RUN and cell_id not in self._seen:
            self._seen.add(cell_id)
            self._cells.put(cell_id)
        elif order.get("order") == Order.INTERRUPT and int(order.get("n", 1)) > self._interrupted.get(cell_id, 0):
            with self._guard:
                self._interrupted[cell_id] = int(order.get("n", 1))
                if cell_id == self._running:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def serve(self, main: Mapping[str, Any], shell: Shell, ray: RaySide | None) -> None:
        """Run cells for ever, in the main thread."""
        while True:
            self._cell(self._cells.get(), main, shell, ray)

    def _cell(self, cell_id: str, main: Mapping[str, Any], shell: Shell, ray: RaySide | None) -> None:
        try:
            request = CellRequest.from_json(self._link.request(cell_id))
        except RefusedError as error:
            _log.error("cell %s: %s", cell_id, error)
            return
        self._link.post(Kind.CELL, CellReport(cell_id, CellPhase.RUNNING, label=request.label).to_json())
        if ray is not None and not self._whole:
            self._whole = True
            if differs := ray.wait_whole(self._submission.nodes, self._submission.nodes * self._submission.gpus_per_node):
                self._link.post(Kind.NOTICE, {"text": differs, "level": "warning"})
        namespace = sys.modules["__main__"].__dict__
        try:
            self._environment(cell_id)
            self._load_inputs(request, namespace)
        except (AIClusterError, OSError) as error:  # OSError: no room
            self._report(request, Outcome(error, str(error).splitlines()), payload.Packed(0, "", ()))
            return
        before = Before.look(request.outputs, namespace)
        self._outputs.begin(cell_id)
        began_s = time.time()
        outcome = self._execute(request, shell)
        if isinstance(outcome.exception, KeyboardInterrupt) and ray is not None:
            ray.stop_work(began_s)
        self._outputs.end()
        changed = before.changed(request.outputs, namespace, () if outcome.failed else _assigned(shell, request.code))
        self._report(request, outcome, self._send_values(request, changed))

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

    def _load_inputs(self, request: CellRequest, namespace: dict[str, Any]) -> None:
        if request.inputs is None:
            return
        with tempfile.TemporaryDirectory(prefix="inputs-", dir=os.environ.get("AICLUSTER_SCRATCH")) as folder:
            path = Path(folder, request.inputs)
            try:
                self._link.download(request.inputs, path)
            except RefusedError as error:
                raise AIClusterError(
                    "the inputs of the cell are not on the cluster", evidence=str(error), hint="run the cell again"
                ) from error
            with path.open("rb") as file:
                namespace.update(payload.unpack(file))

    def _send_values(self, request: CellRequest, values: Mapping[str, Any]) -> payload.Packed:
        if not values:
            return payload.Packed(0, "", ())
        try:
            with tempfile.NamedTemporaryFile(prefix="values-", dir=os.environ.get("AICLUSTER_SCRATCH")) as file:
                packed = payload.pack_outputs(values, file, request.max_output_bytes)
                file.flush()
                self._link.upload_values(request.cell_id, Path(file.name))
        except (OSError, RefusedError) as error:
            text = f"{', '.join(values)} stayed on the cluster, where they still are: there is no room for them ({error})"
            self._link.post(Kind.NOTICE, {"text": text, "level": "warning"})
            return payload.Packed(0, "", ())
        return packed

    def _report(self, request: CellRequest, outcome: Outcome, packed: payload.Packed) -> None:
        phase = CellPhase.DONE
        if outcome.failed:
            stopped = isinstance(outcome.exception, KeyboardInterrupt) and request.cell_id in self._interrupted
            phase = CellPhase.INTERRUPTED if stopped else CellPhase.FAILED
        report = CellReport(
            request.cell_id,
            phase,
            label=request.label,
            names=packed.names + packed.stubs,
            value_bytes=packed.size_bytes,
            error=outcome.error() if outcome.failed else None,
        )
        self._link.post(Kind.CELL, report.to_json())


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
    outputs = Outputs(lambda cell_id, output: link.post(Kind.OUTPUT, {"cell_id": cell_id, "output": output}), log)
    job._reporter = lambda text: link.post(Kind.NOTICE, {"text": text, "level": "info"})
    driver = Driver(run, link, outputs)
    outputs.capture()
    install_streams(Stream(outputs, "stdout"), Stream(outputs, "stderr"))
    link.start(driver.order)
    ray = RaySide.connect() if "RAY_ADDRESS" in os.environ else None
    link.post("driver", {"ready": True})
    module = fresh_main()
    shell = make_shell(module, outputs)
    pickling.cloudpickle()
    sys.path.insert(0, "")  # the notebook's folder, as in a kernel, now that what we need is imported: it may hold a json.py
    driver.serve(module.__dict__, shell, ray)


if __name__ == "__main__":
    main()

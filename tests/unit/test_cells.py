"""Cell runs as their caller sees them."""

from __future__ import annotations

import threading
from typing import Any

from jupyter_aicluster.cells import CellRun, new_cell_id
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.protocol import CellPhase, CellReport, is_id


def say(run: CellRun, kind: Kind, **data: Any) -> None:
    run.hear(Event(1, 1, 5.0, kind, data))


def texts(run: CellRun) -> list[str]:
    found = []
    while not run.events.empty():
        found.append(run.events.get().kind)
    return found


def test_ids_are_plain_and_differ() -> None:
    made = {new_cell_id() for _ in range(100)}
    assert len(made) == 100
    assert all(is_id(cell_id) for cell_id in made)


def test_its_own_output_and_the_clusters_notices_in_order_until_it_is_over() -> None:
    run = CellRun("c1")
    say(run, Kind.CELL, **CellReport("c1", CellPhase.RUNNING).to_json())
    say(run, Kind.OUTPUT, cell_id="other", output={})
    say(run, Kind.OUTPUT, cell_id="c1", output={})
    say(run, Kind.NOTICE, text="x")
    say(run, Kind.GPUS, node=0)
    say(run, Kind.CELL, **CellReport("other", CellPhase.DONE).to_json())
    assert not run.wait(0)
    say(run, Kind.CELL, **CellReport("c1", CellPhase.DONE, names=("x",)).to_json())
    assert run.over
    say(run, Kind.OUTPUT, cell_id="c1", output={})
    run.lost("the cluster ended", 9.0)
    assert texts(run) == ["cell", "output", "notice", "cell"]
    assert run.report is not None
    assert (run.report.phase, tuple(run.report.names)) == (CellPhase.DONE, ("x",))


def test_a_cluster_that_ends_loses_it_and_wakes_who_waits() -> None:
    run = CellRun("c1")
    woken = threading.Event()

    def wait() -> None:
        if run.wait(5):
            woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    run.lost("node 1 left", 9.0)
    waiter.join(5)
    assert woken.is_set()
    assert run.report is not None
    assert (run.report.phase, run.report.cause) == (CellPhase.LOST, "node 1 left")
    assert texts(run) == ["cell"]

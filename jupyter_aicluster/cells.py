"""Cell runs as their caller sees them: events in order until the run is over, whatever becomes of the cluster."""

from __future__ import annotations

import queue
import secrets
import threading

from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.protocol import CellPhase, CellReport


def new_cell_id() -> str:
    return f"cell-{secrets.token_hex(6)}"


class CellRun:
    """One cell run. ``events`` has its OUTPUT and CELL events and the cluster's NOTICEs, in order; thread-safe."""

    def __init__(self, cell_id: str) -> None:
        self.cell_id = cell_id
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.report: CellReport | None = None
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the run is over; at most ``timeout_s`` later."""
        return self._over.wait(timeout_s)

    def hear(self, event: Event) -> None:
        """Called in the background loop with every event of the cluster."""
        if self.over:
            return
        if event.kind == Kind.CELL and event.data.get("cell_id") == self.cell_id:
            self._take(CellReport.from_json(event.data), event)
        elif event.kind == Kind.NOTICE or (event.kind == Kind.OUTPUT and event.data.get("cell_id") == self.cell_id):
            self.events.put(event)

    def lost(self, cause: str, now_s: float) -> None:
        """The cluster ended and no word on this run will come."""
        if not self.over:
            report = CellReport(self.cell_id, CellPhase.LOST, cause=cause, ended_s=now_s)
            self._take(report, Event(0, 0, now_s, Kind.CELL, report.to_json()))

    def _take(self, report: CellReport, event: Event) -> None:
        self.report = report
        self.events.put(event)
        if CellPhase(report.phase).over:
            self._over.set()

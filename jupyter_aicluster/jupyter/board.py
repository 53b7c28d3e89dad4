"""The board: one cluster shown in one cell, kept up to date from any thread, at a bounded rate."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Sequence

from jupyter_aicluster.events import Event
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.faces import Face
from jupyter_aicluster.state import Observation, State

PUSH_S = 0.2  # a face is told at most so often, so that no server drops our messages for being too many
TICK_S = 45.0  # and at least so often while a cell blocks: cullers count it as activity


class Board:
    """Folds changes and shows them by its face.

    While `blocking`, everything is shown as it comes; afterwards only changes of state are, so that a kernel with nothing to do
    stays quiet and can be culled. What a face shows is the full state: one update lost heals with the next. Once the
    cluster has ended the face finishes.
    """

    def __init__(self, model: CardModel, face: Face) -> None:
        self.model = model
        self._face = face
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._context = contextvars.copy_context()  # outputs of other threads then belong to this cell
        self._dirty = self._news = self._blocking = self._over = False

    def show(self) -> None:
        """Put it into the cell's output and keep it up to date, as of a cell that blocks until `rest`."""
        self._face.show()
        self._blocking = True
        threading.Thread(target=self._push_on, name="gpujob-board", daemon=True).start()

    def change(self, change: Observation | Event) -> None:
        """Take in one change; cheap, callable from any thread."""
        with self._lock:
            news = self.model.fold(change)
            self._dirty, self._news = True, self._news or news
            if news or self._blocking:
                self._wake.notify_all()

    def rest(self) -> None:
        """The cell does not block any more."""
        with self._lock:
            self._blocking = False
            self._push(True)
            self._over = self._over or not self._face.later
            self._wake.notify_all()

    def came_back(self, names: Sequence[str]) -> None:
        with self._lock:
            self.model.names_back = names

    def retire(self) -> None:
        """Another cell goes on with this cluster: what is shown here stays, without its live part."""
        with self._lock:
            if not self._over:
                self._over = True
                self._face.finish()
                self._wake.notify_all()

    def wait_ended(self, timeout_s: float) -> bool:
        """Whether the cluster has ended, at the latest after ``timeout_s`` or when it is known to stay. Interruptible."""
        with self._wake:
            self._wake.wait_for(lambda: self.model.status.ended or self.model.stays, timeout_s)
            return self.model.status.ended

    def wait_settled(self) -> None:
        """Until the cluster is ready or over. Interruptible."""
        with self._wake:
            while self.model.status.state in (State.SUBMITTED, State.QUEUED, State.STARTING):
                self._wake.wait(TICK_S)

    def restore(self) -> None:
        """Show again, after the output was cleared."""
        with self._lock:
            self._face.show()

    def _push_on(self) -> None:
        while True:
            with self._lock:
                self._wake.wait_for(
                    lambda: self._over or self._news or (self._blocking and self._dirty), TICK_S if self._blocking else None
                )
                if self._over:
                    return
                if not (self._blocking or self._news):
                    continue
                # Once the cell is over, in an empty context, not as part of it: the front end finds the outputs by their ids.
                context = self._context if self._blocking else contextvars.Context()
                context.copy().run(self._push, self._news)
            time.sleep(PUSH_S)

    def _push(self, news: bool) -> None:
        if self._over:
            return
        self._dirty = self._news = False
        if self.model.status.ended and not self._blocking:
            self._over = True
            self._face.finish()
        else:
            self._face.push(news)

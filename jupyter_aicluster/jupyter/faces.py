"""Faces of a board: receipt and live card in a notebook, lines of text elsewhere."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from jupyter_aicluster.jupyter.card import Card, open_card
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.receipt import cost_line, receipt, static_card
from jupyter_aicluster.state import State

Press = Callable[[str, float], None]  # (event, seconds): a button of the card, in a thread of its own


class Face:
    """Shows a model; this one shows nothing. Not thread-safe: its board sees to that."""

    later = True  # whether it can be told more once the cell is over

    def __init__(self, model: CardModel) -> None:
        self._model = model

    def show(self) -> None:
        """Put it into the output; called again when the output was cleared."""

    def push(self, news: bool) -> None:
        """Show how things are now; ``news``: the state has changed, not only numbers or log lines."""

    def finish(self) -> None:
        """Leave what may stay for good."""


def open_face(model: CardModel, shell: Any, press: Press, display: str = "auto") -> Face:
    """``shell`` is IPython's; ``display`` as in `Options`."""
    kernel = getattr(shell, "kernel", None)
    if display == "none":
        return Face(model)
    return TextFace(model) if kernel is None or display == "text" else NotebookFace(model, shell, kernel, press)


class TextFace(Face):
    """A line per change of state: plain IPython, scripts. Says nothing between later cells and prompts."""

    later = False

    def __init__(self, model: CardModel) -> None:
        super().__init__(model)
        self._said: set[str] = set()

    def push(self, news: bool) -> None:
        if news:
            model = self._model
            self._say(model.sentence(time.time()), model.error(), *model.notices)
            if model.status.state is State.QUEUED:
                self._say(model.safe_to_close())

    def finish(self) -> None:
        self.push(True)
        summary = self._model.summary()
        if summary:
            self._say(cost_line(summary), summary["hint"])

    def _say(self, *lines: str) -> None:
        for line in lines:
            if line and line not in self._said:
                self._said.add(line)
                print(f"[{self._model.name}] {line}", flush=True)  # noqa: T201 - this is the display


class NotebookFace(Face):
    """Two outputs: the receipt, which says enough in a saved notebook, and the card, while there is a kernel."""

    def __init__(self, model: CardModel, shell: Any, kernel: Any, press: Press) -> None:
        super().__init__(model)
        self._publisher = shell.display_pub
        key = secrets.token_hex(8)
        self._receipt_id, self._card_id = f"gpujob-{key}-receipt", f"gpujob-{key}-card"
        self._card: Card | None = open_card(kernel, press)
        if self._card is not None:
            model.line = self._card.line
            self._card.push(model)

    def show(self) -> None:
        self._publish(receipt(self._model.to_json(time.time())), self._receipt_id, False)
        if self._card is not None:
            data, metadata = self._card.bundle()
            self._publish(data, self._card_id, False, metadata)

    def push(self, news: bool) -> None:
        if news:
            self._publish(receipt(self._model.to_json(time.time())), self._receipt_id, True)
        if self._card is not None:
            self._card.push(self._model)

    def finish(self) -> None:
        snapshot = self._model.to_json(time.time())
        self._publish(receipt(snapshot), self._receipt_id, True)
        if self._card is not None:
            self._publish(static_card(snapshot, self._model.log.lines()), self._card_id, True)
            self._card.close()
            self._card = None

    def _publish(self, data: dict[str, Any], display_id: str, update: bool, metadata: dict[str, Any] | None = None) -> None:
        self._publisher.publish(data=data, metadata=metadata or {}, transient={"display_id": display_id}, update=update)

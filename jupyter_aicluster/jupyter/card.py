"""The board: one cluster shown in one cell, as receipt and live card, or as lines of text where there is no notebook."""

from __future__ import annotations

import contextvars
import functools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jupyter_aicluster.events import Event
from jupyter_aicluster.jupyter.card_line import kernel_id, open_line
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.receipt import receipt, static_card
from jupyter_aicluster.state import Observation, State

CARD_JS = Path(__file__).parent / "static" / "card.js"
PUSH_S = 0.2  # the card is told at most so often
TICK_S = 45.0  # and at least so often while a cell blocks: cullers count it as activity

Press = Callable[[str, float], None]  # (event, seconds): a button of the card, in a thread of its own


class Board:
    """Folds changes (from any thread) and shows them.

    While `blocking`, everything is shown as it comes, at most every `PUSH_S`; afterwards only changes of state are, so that a
    kernel with nothing to do stays quiet and can be culled. Once the cluster has ended the card becomes plain HTML.
    """

    def __init__(self, model: CardModel, shell: Any, press: Press) -> None:
        self.model = model
        self._lock = threading.RLock()
        self._context = contextvars.copy_context()  # outputs of other threads then belong to this cell
        self._wake = threading.Condition(self._lock)
        self._dirty = self._news = self._blocking = False
        self._over = False
        kernel = getattr(shell, "kernel", None)
        self._face: _Face = _TextFace(model) if kernel is None else _NotebookFace(model, shell, kernel, press)

    def show(self) -> None:
        """Put it into the cell's output and keep it up to date until `rest`."""
        self._face.show()
        self._blocking = True
        threading.Thread(target=self._context.copy().run, args=(self._push_on,), name="gpujob-board", daemon=True).start()

    def change(self, change: Observation | Event) -> None:
        """Take in one change; cheap, callable from any thread."""
        with self._lock:
            news = self.model.fold(change)
            if self._blocking:
                self._dirty, self._news = True, self._news or news
                self._wake.notify_all()
            elif news and not self._over:
                # In an empty context, not as part of a cell that is over: the front end finds the outputs by their ids.
                contextvars.Context().run(self._push, True)

    def rest(self) -> None:
        """The cell does not block any more."""
        with self._lock:
            self._blocking = False
            self._wake.notify_all()
            self._push(True)

    def came_back(self, names: Sequence[str]) -> None:
        with self._lock:
            self.model.names_back = names

    def retire(self) -> None:
        """Another cell goes on with this cluster: what is shown here stays as plain HTML."""
        with self._lock:
            if not self._over:
                self._over = True
                self._face.retire()

    def wait_ended(self, timeout_s: float) -> bool:
        """Whether the cluster has ended, at the latest after ``timeout_s``. Interruptible."""
        with self._wake:
            return self._wake.wait_for(lambda: self.model.status.ended, timeout_s)

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
        pushed_s = time.monotonic()
        while True:
            with self._lock:
                self._wake.wait_for(lambda: not self._blocking or self._dirty, timeout=TICK_S)
                if not self._blocking:
                    return
                self._push(self._news)
                self._dirty = self._news = False
            spent_s = time.monotonic() - pushed_s
            if spent_s < PUSH_S:
                time.sleep(PUSH_S - spent_s)
            pushed_s = time.monotonic()

    def _push(self, news: bool) -> None:
        if self._over:
            return
        if self.model.status.ended and not self._blocking:
            self._over = True
            self._face.finish()
        else:
            self._face.push(news)


class _Face:
    def __init__(self, model: CardModel) -> None:
        self._model = model

    def show(self) -> None: ...
    def push(self, news: bool) -> None: ...
    def finish(self) -> None: ...
    def retire(self) -> None: ...


class _TextFace(_Face):
    """A line per change of state: plain IPython, scripts."""

    def __init__(self, model: CardModel) -> None:
        super().__init__(model)
        self._said: set[str] = set()

    def push(self, news: bool) -> None:
        if news:
            model = self._model
            lines = [model.sentence(time.time()), *model.notices]
            if model.status.state is State.QUEUED:
                lines.append(model.safe_to_close())
            for line in lines:
                if line and line not in self._said:
                    self._said.add(line)
                    print(f"[{model.name}] {line}", flush=True)  # noqa: T201 - this is the display

    def finish(self) -> None:
        self.push(True)
        plain = receipt(self._model.to_json(time.time()))["text/plain"]
        print("\n".join(plain.splitlines()[1:]), flush=True)  # noqa: T201


class _NotebookFace(_Face):
    """Two outputs: the receipt, which says enough in a saved notebook, and the card, while there is a kernel."""

    def __init__(self, model: CardModel, shell: Any, kernel: Any, press: Press) -> None:
        super().__init__(model)
        self._publisher = shell.display_pub
        key = secrets.token_hex(8)
        self._receipt_id, self._card_id = f"gpujob-{key}-receipt", f"gpujob-{key}-card"
        self._card = _open_card(kernel, press)
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
            self._publish(static_card(snapshot, self._model.log()), self._card_id, True)
            self._card.close()
            self._card = None

    retire = finish

    def _publish(self, data: dict[str, Any], display_id: str, update: bool, metadata: dict[str, Any] | None = None) -> None:
        self._publisher.publish(data=data, metadata=metadata or {}, transient={"display_id": display_id}, update=update)


class _Card:
    """The anywidget, its line to the front end, and what was sent last."""

    def __init__(self, widget: Any, line: str) -> None:
        self._widget, self.line = widget, line
        self._log: list[dict[str, Any]] = []

    def bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        found = self._widget._repr_mimebundle_()
        data, metadata = found if isinstance(found, tuple) else (found, {})
        return dict(data) | {"text/plain": "live card (it needs a running kernel)"}, metadata

    def push(self, model: CardModel) -> None:
        with self._widget.hold_sync():
            self._widget.snapshot = model.to_json(time.time())
            self._widget.frame = model.frame()
            self._widget.log = model.log()

    def close(self) -> None:
        self._widget.close()


def _open_card(kernel: Any, press: Press) -> _Card | None:
    """None where the card's front end was not built or anywidget cannot be used: the receipt then stands alone."""
    kind = _card_class()
    if kind is None:
        return None
    widget = kind(kernel_id=kernel_id(kernel))

    def pressed(_: object, message: dict[str, Any], buffers: object) -> None:
        press(str(message.get("event", "")), float(message.get("seconds") or 1800.0))

    widget.on_msg(pressed)
    return _Card(widget, open_line(widget, kernel))


@functools.cache
def _card_class() -> Any:
    if not CARD_JS.exists():
        return None
    import anywidget
    import traitlets

    class Card(anywidget.AnyWidget):
        """Traits as in labextension/src/card/model.ts."""

        _esm = CARD_JS
        snapshot = traitlets.Dict().tag(sync=True)
        frame = traitlets.Bytes(b"").tag(sync=True)
        log: Any = traitlets.List().tag(sync=True)
        kernel_id = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    return Card

"""The live card: an anywidget, its line to the front end, and its end, after which nothing of it stays in a saved notebook."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_aicluster.jupyter.card_line import kernel_id, open_line
from jupyter_aicluster.jupyter.card_model import CardModel

CARD_JS = Path(__file__).parent / "static" / "card.js"


class Card:
    """``line``: who hears its buttons (card_line.py)."""

    def __init__(self, widget: Any, line: str) -> None:
        self._widget, self.line = widget, line

    def bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        found = self._widget._repr_mimebundle_()
        data, metadata = found if isinstance(found, tuple) else (found, {})
        return dict(data) | {"text/plain": "live card (it needs a running kernel)"}, metadata

    def push(self, model: CardModel) -> None:
        """One message with the full state."""
        with self._widget.hold_sync():
            self._widget.snapshot = model.to_json(time.time())
            self._widget.frame = model.nodes.frame()
            self._widget.log = model.log.lines()

    def close(self) -> None:
        """A front end forgets the model; a client that keeps every model it has heard of (nbclient) keeps an empty one."""
        with self._widget.hold_sync():
            for name, empty in _EMPTY.items():
                setattr(self._widget, name, empty)
        self._widget.close()


_EMPTY: dict[str, Any] = {"snapshot": {}, "frame": b"", "log": [], "_esm": "", "_css": ""}


def open_card(kernel: Any, press: Callable[[str, float], None]) -> Card | None:
    """None where the card's front end was not built or anywidget cannot be used: the receipt then stands alone."""
    kind = _widget_class()
    if kind is None:
        return None
    widget = kind(kernel_id=kernel_id(kernel), layout=_layout())

    def pressed(_: object, message: dict[str, Any], buffers: object) -> None:
        press(str(message.get("event", "")), float(message.get("seconds") or 1800.0))

    widget.on_msg(pressed)
    return Card(widget, open_line(widget, kernel))


@functools.cache  # one for all cards: else each would leave another in saved notebooks
def _layout() -> Any:
    from ipywidgets import Layout

    return Layout()


@functools.cache
def _widget_class() -> Any:
    if not CARD_JS.exists():
        return None
    import anywidget
    import traitlets

    class ClusterCard(anywidget.AnyWidget):
        """Traits as in labextension/src/card/model.ts."""

        _esm = CARD_JS
        snapshot = traitlets.Dict().tag(sync=True)
        frame = traitlets.Bytes(b"").tag(sync=True)
        log: Any = traitlets.List().tag(sync=True)
        kernel_id = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    return ClusterCard

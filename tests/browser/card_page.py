"""A page that shows the built card with a model of our own, in JupyterLab's themes: no server, no kernel."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

CARD = Path(__file__).parents[2] / "jupyter_aicluster/jupyter/static/card.js"
THEMES = Path(sys.prefix, "share/jupyter/lab/themes/@jupyterlab")
PAGE = "http://jupyter.test/some/prefix/lab"  # answered by the test itself
NAN = float("nan")
Reading = tuple[float, float, float, float]

# The smallest model with anywidget's interface; what the card sends is kept in window.sent.
_SCRIPT = """
async ([source, state]) => {
  const listeners = {};
  const frame = text => new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  window.sent = [];
  const traits = { ...state, frame: frame(state.frame) };
  const model = {
    get: name => traits[name],
    on: (event, f) => (listeners[event] ??= []).push(f),
    off: (event, f) => { listeners[event] = (listeners[event] ?? []).filter(g => g !== f); },
    send: message => window.sent.push(message)
  };
  window.put = (name, value) => {
    traits[name] = name === 'frame' ? frame(value) : value;
    for (const f of listeners['change:' + name] ?? []) f();
  };
  window.listening = () => Object.values(listeners).flat().length;
  const card = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })));
  window.cleanup = card.default.render({ model, el: document.querySelector('#cell') });
}
"""


class CardPage:
    """One card on one page; `put` changes a trait as the kernel would."""

    def __init__(self, browser: Browser, state: dict[str, Any], theme: str = "light", width: int = 980) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 560}, device_scale_factor=2)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        style = (THEMES / f"theme-{theme}-extension" / "index.css").read_text()
        html = (
            f"<!doctype html><style>{style}</style><style>body {{ background: var(--jp-layout-color0); margin: 16px; "
            "font-family: var(--jp-ui-font-family) }</style><div id=cell></div>"
        )
        self.page.route(PAGE, lambda route: route.fulfill(body=html, content_type="text/html"))
        self.page.goto(PAGE)
        self.page.evaluate(_SCRIPT, [CARD.read_text(), state])

    def put(self, name: str, value: object) -> None:
        self.page.evaluate("([name, value]) => window.put(name, value)", [name, value])

    def text(self, testid: str) -> str:
        return self.page.get_by_test_id(testid).text_content() or ""

    def shown(self, testid: str) -> bool:
        return self.page.get_by_test_id(testid).is_visible()

    def sent(self) -> list[dict[str, Any]]:
        return json.loads(self.page.evaluate("JSON.stringify(window.sent)"))  # type: ignore[no-any-return]

    def picture(self, path: Path) -> None:
        self.page.screenshot(path=path, clip=self._box())

    def close(self) -> None:
        self.context.close()

    def _box(self) -> Any:
        box = self.page.locator(".aic-card").bounding_box()
        assert box is not None
        return {"x": box["x"] - 12, "y": box["y"] - 12, "width": box["width"] + 24, "height": box["height"] + 24}


def frame(readings: Iterable[Reading]) -> str:
    return base64.b64encode(b"".join(struct.pack("<4f", *reading) for reading in readings)).decode()


def node(number: int, gpus: Sequence[int], state: str = "joined", simulated: bool = True) -> dict[str, Any]:
    name = "simulated GPU" if simulated else "NVIDIA H100 80GB HBM3"
    infos = [{"index": str(gpu), "name": name, "mem_total_bytes": 80_000_000_000} for gpu in gpus]
    return {"node": number, "host": f"worker-{number}.example.internal", "state": state, "simulated": simulated, "gpus": infos}


def snapshot(**changes: Any) -> dict[str, Any]:
    """A cell that runs on 4 GPUs of 2 nodes; ``changes`` replaces parts of it."""
    running: dict[str, Any] = {
        "now_s": 1_760_000_000.0, "name": "fox", "backend": "local", "gpus": 4, "state": "ready", "tone": "run", "attempt": 1,
        "sentence": "Running · 4/4 busy", "since_s": 1_760_000_000.0 - 42, "limit_s": 7200, "safe_to_close": "Safe to close this notebook",
        "gates": {"connected": {"have": 2, "want": 2}, "joined": {"have": 2, "want": 2}, "missing": []},
        "nodes": [node(0, [0, 1]), node(1, [2, 3])], "countdowns": [], "names_sent": ["config", "X_train", "y_train"],
        "names_expected": ["losses", "model"], "notices": [], "error": "", "can_interrupt": True, "can_keep": False, "can_stop": True,
        "line": "own subshell", "dashboard": "", "summary": None,
    }  # fmt: skip
    assert changes.keys() <= running.keys()
    return running | changes


def state(
    snap: dict[str, Any], readings: Iterable[Reading] = (), log: Sequence[tuple[int, str]] = (), kernel: str | None = None
) -> dict[str, Any]:
    lines = [{"node": number, "writer": "driver", "text": text} for number, text in log]
    return {"snapshot": snap, "frame": frame(readings), "log": lines, "kernel_id": kernel}

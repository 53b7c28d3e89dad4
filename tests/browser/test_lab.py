"""The main job as a person sees it: a real JupyterLab, a real kernel, real Ray, a typed cell, the card, its buttons."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from jupyter_aicluster.ledger import Ledger
from tests.browser.lab import Lab, lab, write_notebook

CELL = """\
%%gpujob --gpus 4 -N 2 --backend local --time 10m
import time, ray

@ray.remote(num_gpus=1, scheduling_strategy="SPREAD")
def burn(k):
    print("burning", k, flush=True)
    until = time.time() + 300
    while time.time() < until:
        sum(range(200_000))

print("cell is on its way")
ray.get([burn.remote(k) for k in range(4)])"""

# What the card showed, in order, from inside the page: a state that lasts 200 ms is not missed.
WATCH = """
() => {
  window.seen = [];
  setInterval(() => {
    const card = document.querySelector('[data-testid=aicluster-card]');
    if (!card) return;
    const text = id => { const e = card.querySelector(`[data-testid=${id}]`); return e && !e.hidden ? e.textContent : ''; };
    const now = [card.dataset.state, text('sentence').split(' ')[0], text('gate-joined')].join('|');
    if (window.seen.at(-1) !== now) window.seen.push(now);
  }, 40);
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture
def saved(request: pytest.FixtureRequest, server: Lab) -> Path:
    """A notebook, and so a kernel, of the test's own."""
    path = server.root / f"{request.node.name}.ipynb"
    write_notebook(path, "%load_ext jupyter_aicluster", "")
    return path


@pytest.fixture
def page(browser: Browser, server: Lab, saved: Path, pictures: Path) -> Iterator[Page]:
    server.errors.clear()
    page = server.open(browser, saved.name)
    yield page
    page.screenshot(path=pictures / "lab-last.png")  # where it stood, should it have failed
    page.context.close()
    assert server.errors == []


def test_50_runs_of_a_cell_leave_a_small_notebook(page: Page, server: Lab, saved: Path) -> None:
    page.locator(".jp-Notebook .jp-CodeCell").nth(1).locator(".cm-content").click()
    page.keyboard.insert_text("from tests.unit.scripted_run import run\nrun()")
    for count in range(1, 51):
        run_cell(page, 1)
        expect(page.locator(".jp-CodeCell .jp-InputPrompt").nth(1)).to_have_text(f"[{count}]:", timeout=20_000)
        if count % 10 == 0:  # as autosave would, also in the middle
            page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    expect(page.locator(".jp-RenderedHTML", has_text="given back").first).to_be_visible()
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    notebook = json.loads(saved.read_text())
    assert len(json.dumps(notebook["metadata"]["widgets"])) < 50_000
    assert len(json.dumps(notebook)) < 100_000
    assert "given back" in json.dumps(notebook["cells"][1]["outputs"])
    # ipywidgets complains about views that are gone within a few milliseconds of being shown, which no real run's is.
    server.errors[:] = [error for error in server.errors if "processLuminoMessage" not in error]


def run_cell(page: Page, number: int) -> None:
    page.locator(".jp-Notebook .jp-CodeCell").nth(number).locator(".cm-content").click()
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")


def picture(page: Page, path: Path) -> None:
    page.wait_for_timeout(300)  # the theme's style sheet has been swapped, its colours fade in
    page.screenshot(path=path)


def wait_for(page: Page, script: str, timeout_s: float) -> None:
    page.wait_for_function(script, timeout=1000 * timeout_s, polling=100)


def busy(page: Page) -> list[str]:
    """Utilisations shown now, by GPU; empty where there is none."""
    found: list[str] = page.get_by_test_id("gpu").evaluate_all("cells => cells.map(cell => cell.dataset.util)")
    return found


@pytest.mark.ray
def test_a_typed_cell_from_the_queue_to_its_summary(page: Page, server: Lab, pictures: Path) -> None:
    page.evaluate(WATCH)
    run_cell(page, 0)
    expect(page.locator(".jp-CodeCell .jp-InputPrompt").first).to_have_text("[1]:")

    slots = Ledger(server.home / "ledger" / socket.gethostname(), tuple(f"sim{slot}" for slot in range(16)))
    someone = slots.request("0123456789ab", 16, name="somebody")  # holds every GPU for now
    assert slots.try_grant("0123456789ab") is not None

    page.locator(".jp-Notebook .jp-CodeCell").nth(1).locator(".cm-content").click()
    page.keyboard.insert_text(CELL)
    run_cell(page, 1)
    card = page.get_by_test_id("aicluster-card")
    expect(card).to_have_attribute("data-state", "queued", timeout=30_000)
    expect(page.get_by_test_id("place")).to_contain_text("4")
    picture(page, pictures / "lab-queued-light.png")
    slots.release("0123456789ab")
    someone.close()

    expect(card).to_have_attribute("data-state", "ready", timeout=120_000)
    seen: list[str] = page.evaluate("() => window.seen")
    assert any(line.startswith("queued|") for line in seen), seen
    assert any(line.startswith("starting|") for line in seen), seen
    assert page.get_by_test_id("node").count() == 2
    wait_for(page, "() => document.querySelector('[data-testid=sentence]').textContent.startsWith('Running')", 60)

    # Cell output is the cell's; log lines come by node.
    expect(page.locator(".jp-OutputArea-output", has_text="cell is on its way").first).to_be_visible(timeout=30_000)
    for node in ("0", "1"):
        expect(page.locator(f"[data-testid=log-line][data-node='{node}']").first).to_be_visible(timeout=60_000)

    wait_for(page, "() => [...document.querySelectorAll('[data-testid=gpu]')].some(cell => Number(cell.dataset.util) > 5)", 60)
    first = busy(page)
    assert len(first) == 4
    wait_for(
        page, f"() => JSON.stringify([...document.querySelectorAll('[data-testid=gpu]')].map(c => c.dataset.util)) !== '{_json(first)}'", 15
    )
    page.wait_for_timeout(3000)  # a little history for the picture
    picture(page, pictures / "lab-running-light.png")
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    picture(page, pictures / "lab-running-dark.png")

    clicked = time.monotonic()
    page.get_by_test_id("interrupt").click()
    expect(page.locator(".jp-OutputArea-output", has_text="KeyboardInterrupt").first).to_be_visible(timeout=20_000)
    assert time.monotonic() - clicked < 15
    expect(page.get_by_test_id("countdowns")).to_contain_text("GPUs", timeout=10_000)  # held for another try
    picture(page, pictures / "lab-interrupted-dark.png")

    page.get_by_test_id("stop").click()
    page.get_by_test_id("stop").click()  # "Give back now?"
    expect(page.locator(".jp-RenderedHTML", has_text=re.compile("GPU-(seconds|minutes) held")).first).to_be_visible(timeout=60_000)
    expect(card).to_have_count(0)  # replaced by plain HTML
    assert len(slots.snapshot().free) == 16
    picture(page, pictures / "lab-ended-dark.png")


def _json(values: list[str]) -> str:
    return "[" + ",".join(f'"{value}"' for value in values) + "]"

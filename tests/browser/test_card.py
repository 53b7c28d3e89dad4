"""The built card alone: what it shows for each state, what its buttons send, and pictures of it in both themes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.card_page import NAN, CardPage, Reading, frame, node, snapshot, state

Open = Callable[..., CardPage]
LOG = [(step % 2, f"epoch {step} · loss {2.3 / (1 + 0.2 * step):.4f} · 1840 samples/s") for step in range(1, 15)]
GONE = {"gates": {"connected": None, "joined": None, "missing": []}, "nodes": []}
SUMMARY = {
    "ending": "done", "cause": "", "gpu_hours_held": 0.07, "gpu_hours_used": 0.055, "waited_s": 12.4, "ran_s": 66.0,
    "peak_mem_bytes": 11_300_000_000, "hint": "2 GPUs would have fitted: two of the four were never over 5 %",
}  # fmt: skip
SCENES: dict[str, dict[str, Any]] = {
    "queued": snapshot(
        state="queued",
        tone="wait",
        sentence="Waiting · 3rd of 7 · 2 of 16 GPUs are free",
        since_s=None,
        limit_s=None,
        can_interrupt=True,
        **GONE,
    ),
    "joining": snapshot(
        state="starting",
        tone="wait",
        sentence="Starting · node 1 joins",
        limit_s=None,
        since_s=1_760_000_000 - 6,
        can_interrupt=False,
        gates={
            "connected": {"have": 2, "want": 2},
            "joined": {"have": 1, "want": 2},
            "missing": [{"node": 1, "host": "worker-1.example.internal", "why": "ray start has run for 4 s"}],
        },
        nodes=[node(0, [0, 1]), node(1, [2, 3], state="connected")],
    ),
    "running": snapshot(),
    "large": snapshot(
        gpus=32, sentence="Running · 30/32 busy", nodes=[node(k, range(8), simulated=False) for k in range(4)], backend="slurm"
    ),
    "held": snapshot(
        tone="bad",
        sentence="Failed after 0:42 · GPUs are held",
        since_s=None,
        limit_s=None,
        can_interrupt=False,
        can_keep=True,
        error="ValueError: expected 64 features, got 63",
        countdowns=[{"what": "hold", "text": "Mend the cell and run it again; GPUs go back in", "at_s": 1_760_000_581.5}],
    ),
    "no_line": snapshot(line="none", notices=["Only node 0 works: 15 GPUs have idled for two minutes. Did you mean --spmd?"]),
    "done": snapshot(
        state="ended",
        tone="good",
        sentence="Done · ran 1:06",
        since_s=None,
        limit_s=None,
        safe_to_close="",
        names_sent=[],
        can_interrupt=False,
        can_stop=False,
        summary=SUMMARY,
    ),
}


def readings(count: int, second: int = 0) -> list[Reading]:
    def one(gpu: int) -> Reading:
        if gpu == 13:
            return (NAN, NAN, NAN, NAN)
        if gpu == 22:
            return (-1.0, NAN, NAN, NAN)
        wave = 84 + 10 * math.sin(second / 4 + gpu) - (60 if gpu == 5 else 0)
        return (max(0.0, min(100.0, wave)), (18 + 3 * (gpu % 4)) * 1e9, 412.0, 61.0)

    return [one(gpu) for gpu in range(count)]


@pytest.fixture
def open_card(browser: Browser) -> Iterator[Open]:
    pages: list[CardPage] = []

    def open_(*args: Any, **options: Any) -> CardPage:
        pages.append(CardPage(browser, *args, **options))
        return pages[-1]

    yield open_
    for page in pages:
        page.close()
        assert page.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scene", SCENES)
def test_pictures(open_card: Open, pictures: Path, scene: str, theme: str) -> None:
    snap = SCENES[scene]
    card = open_card(state(snap, log=[] if scene in ("queued", "joining") else LOG), theme=theme)
    gpus = sum(len(each["gpus"]) for each in snap["nodes"])
    for second in range(0 if scene == "joining" else 45):
        card.put("frame", frame(readings(gpus, second)))
    expect(card.page.locator(".aic-card")).to_have_attribute("data-state", snap["state"])
    card.picture(pictures / f"card-{scene}-{theme}.png")


def test_a_narrow_page(open_card: Open, pictures: Path) -> None:
    card = open_card(state(SCENES["large"], readings(32), LOG), width=620)
    assert card.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    card.picture(pictures / "card-large-narrow.png")


def test_the_clock_runs_and_corrects_for_another_clock_in_the_kernel(open_card: Open) -> None:
    card = open_card(state(snapshot()))
    assert card.text("sentence").startswith("Running 42 s of 2:00:00 · 4/4 busy")
    expect(card.page.get_by_test_id("sentence")).to_contain_text("Running 44 s", timeout=5000)


def test_gates_are_shown_while_starting_only(open_card: Open) -> None:
    card = open_card(state(SCENES["joining"]))
    assert card.text("gate-joined").startswith("joined 1/2")
    assert "node 1 (worker-1.example.internal): ray start has run for 4 s" in card.text("gates")
    card.put("snapshot", SCENES["running"])
    assert not card.shown("gates")


def test_gpus_show_what_was_read_and_nothing_else(open_card: Open) -> None:
    card = open_card(state(snapshot(), [(83.4, 20e9, 300, 60), (NAN, NAN, NAN, NAN), (-1, NAN, NAN, NAN), (0, 0, 55, 30)]))
    assert card.page.get_by_test_id("gpu").all_inner_texts() == ["83%\n20.0 GB", "n/a", "lost", "0%\n0 B"]
    first = card.page.get_by_test_id("gpu").first
    assert first.get_attribute("title") == "GPU 0 · simulated GPU\nutilisation 83%\nmemory 20.0 GB of 80.0 GB\n300 W · 60 °C"
    assert "4 simulated GPUs on 2 nodes" in card.text("place")


def test_log_lines_by_node_and_filter(open_card: Open) -> None:
    card = open_card(state(snapshot(), log=[(0, "alpha one"), (1, "\x1b[32mbeta\x1b[0m two"), (1, "<b>gamma</b>")]))
    assert card.page.get_by_test_id("log-line").all_inner_texts() == ["0driveralpha one", "1driverbeta two", "1driver<b>gamma</b>"]
    card.page.get_by_role("button", name="node 1").click()
    assert card.page.get_by_test_id("log-line").count() == 2
    card.page.get_by_role("searchbox").fill("GAMMA")
    assert card.page.get_by_test_id("log-line").all_inner_texts() == ["1driver<b>gamma</b>"]


def test_the_log_stays_at_its_end_unless_scrolled_away(open_card: Open) -> None:
    lines = [{"node": 0, "writer": "s", "text": f"line {i}"} for i in range(200)]
    card = open_card(state(snapshot()))
    card.put("log", lines[:100])
    away = "e => e.scrollHeight - e.scrollTop - e.clientHeight"
    card.put("log", lines)
    assert card.page.locator(".aic-lines").evaluate(away) < 5
    card.page.locator(".aic-lines").evaluate("e => { e.scrollTop = 40; }")
    card.put("log", lines[10:])
    assert card.page.locator(".aic-lines").evaluate("e => e.scrollTop") == 40


def test_buttons_send_and_stop_asks_once(open_card: Open) -> None:
    card = open_card(state(snapshot(can_keep=True)))
    card.page.get_by_test_id("interrupt").click()
    card.page.get_by_test_id("keep").click()
    card.page.get_by_test_id("stop").click()
    assert card.sent() == [{"event": "interrupt"}, {"event": "keep", "seconds": 1800}]
    card.page.get_by_test_id("stop").click()
    assert card.sent()[-1] == {"event": "stop"}
    card.put("snapshot", SCENES["done"])
    assert not any(card.shown(name) for name in ("interrupt", "keep", "stop"))


def test_while_waiting_there_is_one_button_that_cancels(open_card: Open) -> None:
    card = open_card(state(SCENES["queued"]))
    assert card.text("interrupt") == "Cancel"
    assert not card.shown("stop")
    card.put("snapshot", SCENES["running"])
    assert card.text("interrupt") == "Interrupt"


def test_without_a_line_no_dead_buttons_but_a_sentence(open_card: Open) -> None:
    card = open_card(state(snapshot(line="none"), kernel="abc"))
    assert not any(card.shown(name) for name in ("interrupt", "keep", "stop"))
    assert card.text("no-line") == "press ■, or jupyter aicluster stop fox"


def test_without_a_line_interrupt_goes_through_the_server(open_card: Open) -> None:
    card = open_card(state(snapshot(line="none"), kernel="abc/d"))
    card.context.add_cookies([{"name": "_xsrf", "value": "2|token", "url": "http://jupyter.test/some/prefix/"}])
    card.page.route("**/api/kernels/**", lambda route: route.fulfill(status=204))
    card.page.evaluate(
        "() => document.body.insertAdjacentHTML('beforeend', `<script type='application/json' id='jupyter-config-data'>"
        '{"baseUrl": "/some/prefix"}</script>`)'
    )
    card.put("snapshot", snapshot(line="none"))
    with card.page.expect_request("**/interrupt") as call:
        card.page.get_by_test_id("interrupt").click()
    assert call.value.method == "POST"
    assert call.value.url == "http://jupyter.test/some/prefix/api/kernels/abc%2Fd/interrupt"
    assert call.value.headers["x-xsrftoken"] == "2|token"


def test_the_end_shows_the_result_then_the_cost(open_card: Open) -> None:
    card = open_card(state(SCENES["done"], readings(4)))
    assert card.text("cost") == "waited 12 s · 4 GPU-minutes held, 79 % of it busy · peak memory 11.3 GB a GPU"
    assert "brought back losses, model" in card.text("names")
    assert not card.shown("gpus")


def test_closing_the_view_leaves_nothing_behind(open_card: Open) -> None:
    card = open_card(state({}))
    card.put("snapshot", snapshot())
    card.page.evaluate("() => window.cleanup()")
    assert card.page.evaluate("() => window.listening()") == 0

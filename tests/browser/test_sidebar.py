"""The sidebar in a real JupyterLab: every state of a cluster, in pictures too, and one that another process has made."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.lab import Lab, lab, write_notebook

MAKE = """\
from jupyter_aicluster import Cluster
c = Cluster(gpus=2, nodes=2, backend="local", label="otter")
print(c.run(lambda: print("said by the other process", flush=True)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, server: Lab, pictures: Path) -> Iterator[Page]:
    name = f"{request.node.originalname}.ipynb"
    write_notebook(server.root / name, "")
    server.errors.clear()
    page = server.open(browser, name)
    yield page
    page.screenshot(path=pictures / "sidebar-last.png")  # where it stood, should it have failed
    page.context.close()
    assert server.errors == []


def open_sidebar(page: Page) -> Locator:
    page.locator(".jp-SideBar [data-id='jupyter-aicluster-clusters']").click()
    panel = page.get_by_role("region", name="GPU clusters")
    expect(panel).to_be_visible()
    return panel


def cluster(name: str, **changes: Any) -> dict[str, Any]:
    """One that is ready and unused."""
    now_s = time.time()
    base: dict[str, Any] = {
        "uid": (name.encode().hex() + "0" * 12)[:12], "name": name, "backend": "local", "gpus": 4, "nodes": 1, "simulated": False,
        "state": "ready", "tone": "good", "attempt": 1, "sentence": "Ready · 4 GPUs held", "since_s": None, "error": "", "notice": "",
        "created_s": now_s - 600, "ended_s": None, "time_left": {"what": "keep", "at_s": now_s + 1692}, "can_keep": True, "can_stop": True,
    }  # fmt: skip
    assert changes.keys() <= base.keys()
    return base | changes


def scene() -> list[dict[str, Any]]:
    now_s = time.time()
    over: dict[str, Any] = {"state": "ended", "time_left": None, "can_keep": False, "can_stop": False}
    waits: dict[str, Any] = {"state": "queued", "tone": "wait", "time_left": None, "can_keep": False}
    return [
        cluster(
            "fox", gpus=16, nodes=2, backend="slurm", tone="run", sentence="Running as one process", since_s=now_s - 762,
            time_left={"what": "time", "at_s": now_s + 6438},
        ),
        cluster("resnet-sweep", gpus=8, **waits, sentence="Waiting: 2 of 16 GPUs are free · 3rd of 7", since_s=now_s - 95),
        cluster(
            "otter", tone="bad", sentence="Failed after 0:42 · 4 GPUs held: mend the cell and run it again",
            error="ValueError: expected 64 features, got 63", time_left={"what": "hold", "at_s": now_s + 48},
        ),
        cluster("heron", nodes=2, simulated=True, attempt=2),
        cluster("newt", **over, tone="good", sentence="Done: its job is done", ended_s=now_s - 1300),
        cluster("yak", **over, tone="bad", sentence="Failed: node 1 has not been heard for 15 s", ended_s=now_s - 90_000),
    ]  # fmt: skip


class Fake:
    """Answers the page's questions about clusters in the server's place."""

    def __init__(self, page: Page, clusters: list[dict[str, Any]]) -> None:
        self.clusters, self.status = clusters, 200
        self.asked: list[str] = []
        self.logs: dict[str, bytes] = {}  # of every cluster: stream of node 0 → what was written
        page.route("**/aicluster/clusters**", self._answer)

    def _answer(self, route: Route) -> None:
        path = route.request.url.split("/aicluster/clusters")[1]
        self.asked.append(f"{route.request.method} {path.split('?')[0]}")
        if "/logs/" in path:
            start = int(path.partition("?from=")[2].partition("&")[0])
            route.fulfill(
                body=self.logs[path.split("?")[0].rpartition("/")[2]][start : start + (1 << 20)], content_type="application/octet-stream"
            )
            return
        if path.split("?")[0].endswith("/logs"):
            streams = [{"node": 0, "stream": stream, "size": len(data)} for stream, data in self.logs.items()]
            route.fulfill(body=json.dumps({"attempt": 1, "ended": False, "streams": streams}), content_type="application/json")
            return
        body = {"now_s": time.time(), "clusters": self.clusters} if self.status == 200 else {"message": "no room", "hint": "make some"}
        route.fulfill(status=self.status, body=json.dumps(body), content_type="application/json")


def test_every_state_reads_well_in_both_themes(page: Page, pictures: Path) -> None:
    Fake(page, scene())
    panel = open_sidebar(page)
    rows = panel.get_by_role("list", name="Clusters that live").get_by_role("listitem")
    expect(rows).to_have_count(4)
    expect(panel.get_by_test_id("total")).to_have_text("3 clusters hold 24 GPUs, 1 waits")
    expect(rows.nth(0)).to_contain_text("Running 12:4")
    expect(rows.nth(0)).to_contain_text("left until its time limit")
    expect(rows.nth(1).get_by_role("button", name="Keep")).to_have_count(0)
    expect(rows.nth(2).get_by_role("alert")).to_have_text("ValueError: expected 64 features, got 63")
    expect(rows.nth(3)).to_contain_text("4 simulated GPUs on 2 nodes · local · attempt 2")
    panel.get_by_text("2 clusters ended").click()
    expect(panel.get_by_text("21 min ago")).to_be_visible()
    for theme in ("Light", "Dark"):
        page.evaluate(f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {theme}' }})")
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", str(theme == "Light").lower())
        page.wait_for_timeout(400)
        page.screenshot(path=pictures / f"sidebar-{theme.lower()}.png")


def test_empty_it_offers_a_cell_and_puts_it_into_the_notebook(page: Page, pictures: Path) -> None:
    panel = open_sidebar(page)
    expect(panel).to_contain_text("You hold no GPUs")
    page.wait_for_timeout(400)
    page.screenshot(path=pictures / "sidebar-empty.png")
    panel.get_by_role("button", name="Insert into notebook").click()
    cells = page.locator(".jp-Notebook .jp-CodeCell .cm-content")
    expect(cells).to_have_count(2)
    expect(cells.nth(0)).to_have_text("%load_ext jupyter_aicluster")
    expect(cells.nth(1)).to_contain_text("%%gpujob --gpus 4")
    page.evaluate("() => window.jupyterapp.commands.execute('aicluster:insert-cell')")
    expect(cells).to_have_count(3)  # the magic is loaded already
    expect(cells.nth(2)).to_contain_text("%%gpujob --gpus 4")


def test_keyboard_alone_stops_a_cluster_and_says_so(page: Page) -> None:
    fake = Fake(page, [cluster("fox"), cluster("owl")])
    panel = open_sidebar(page)
    stop = panel.get_by_role("button", name="Stop: fox")
    stop.focus()
    page.keyboard.press("Enter")
    expect(panel.get_by_role("button", name="Press again to confirm")).to_be_focused()
    page.keyboard.press("Escape")
    expect(stop).to_have_text("Stop")
    assert not [line for line in fake.asked if "stop" in line]
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(panel.get_by_text("Stopping…")).to_be_visible()
    assert [line for line in fake.asked if line.startswith("POST")] == [f"POST /{cluster('fox')['uid']}/stop"]
    fake.clusters = [cluster("fox", state="ending", tone="idle", sentence="Giving the GPUs back", can_stop=False), cluster("owl")]
    expect(panel.get_by_role("status")).to_have_text("fox: Giving the GPUs back")


def test_it_asks_only_while_it_is_seen_and_says_when_nobody_answers(page: Page, server: Lab) -> None:
    fake = Fake(page, [cluster("fox")])
    page.wait_for_timeout(2500)
    assert fake.asked == []  # the panel was never opened
    panel = open_sidebar(page)
    expect(panel.get_by_test_id("cluster")).to_have_count(1)
    fake.status = 503
    expect(panel.get_by_test_id("panel-trouble")).to_contain_text("no room", timeout=10_000)
    expect(panel.get_by_test_id("cluster")).to_have_count(1)  # as it was
    fake.status = 200
    expect(panel.get_by_test_id("panel-trouble")).to_be_hidden(timeout=20_000)
    page.locator(".jp-SideBar [data-id='jupyter-aicluster-clusters']").click()  # closes it
    expect(panel).to_be_hidden()
    page.wait_for_timeout(300)
    fake.asked.clear()
    page.wait_for_timeout(4500)
    assert fake.asked == []
    server.errors[:] = [error for error in server.errors if "503" not in error]


def test_a_log_is_followed_through_a_flood_and_left_alone_while_it_is_read(page: Page, pictures: Path) -> None:
    fake = Fake(page, [cluster("fox")])
    fake.logs = {"ray": b"Ray runtime started\n", "driver-main": b"".join(f"epoch {k}\n".encode() for k in range(300))}
    open_sidebar(page).get_by_role("button", name="Log: fox").click()
    lines, facts = page.get_by_test_id("log-lines"), page.get_by_test_id("log-facts")
    expect(lines).to_contain_text("epoch 299")
    assert at_end(lines)

    fake.logs["driver-main"] += b"".join(f"step {k} of a flood\n".encode() for k in range(200_000))
    expect(lines).to_contain_text("step 199999 of a flood", timeout=10_000)
    assert at_end(lines)
    assert len((lines.text_content() or "").splitlines()) <= 2000
    expect(facts).to_contain_text("the newest 2,000 lines")

    lines.hover()
    page.mouse.wheel(0, -2000)
    follow = page.get_by_role("button", name="Follow")
    expect(follow).to_have_attribute("aria-pressed", "false")
    place = lines.evaluate("lines => lines.scrollTop")
    fake.logs["driver-main"] += b"news\n"
    expect(lines).to_contain_text("news")
    assert lines.evaluate("lines => lines.scrollTop") == place
    follow.click()
    assert at_end(lines)

    page.get_by_label("Filter log lines").fill("199998")
    expect(lines).to_have_text("step 199998 of a flood")
    expect(facts).to_contain_text("1 match")
    page.screenshot(path=pictures / "sidebar-log-filtered.png")


def at_end(lines: Locator) -> bool:
    return bool(lines.evaluate("lines => lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24"))


@pytest.mark.ray
def test_a_cluster_of_another_process_is_seen_read_kept_and_stopped(page: Page, server: Lab, pictures: Path) -> None:
    made = subprocess.run([sys.executable, "-c", MAKE], env=server.env, cwd=server.root, capture_output=True, text=True, timeout=180)
    assert made.returncode == 0, made.stderr
    panel = open_sidebar(page)
    row = panel.get_by_test_id("cluster").filter(has_text="otter")
    expect(row).to_have_attribute("data-state", "ready")
    expect(row).to_contain_text("2 simulated GPUs on 2 nodes · local")
    expect(row.get_by_test_id("time-left")).to_contain_text("if unused")

    row.get_by_role("button", name="Log: otter").click()
    lines = page.get_by_test_id("log-lines")
    expect(lines).to_contain_text("said by the other process", timeout=20_000)
    choice = page.get_by_label("Log of", exact=True)
    expect(choice.locator("option")).not_to_have_count(1)  # Ray's own, of both nodes
    page.wait_for_timeout(500)
    page.screenshot(path=pictures / "sidebar-log.png")
    choice.select_option(label="node 1 · ray")
    expect(lines).to_contain_text("Ray runtime started")

    row.get_by_role("button", name="Attach: otter").click()
    cells = page.locator(".jp-Notebook .jp-CodeCell .cm-content")
    expect(cells.nth(0)).to_have_text("%load_ext jupyter_aicluster")
    expect(cells.nth(1)).to_have_text("%gpujob attach otter")

    row.get_by_role("button", name="Keep 30 min").click()
    expect(row.get_by_test_id("time-left")).to_contain_text("goes back in 29:", timeout=10_000)
    row.get_by_role("button", name="Stop").click()
    row.get_by_role("button", name="Press again").click()
    expect(row).to_have_attribute("data-state", "ended", timeout=60_000)
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter_aicluster.jupyter.cli", "list", "--json"],
        env=server.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(listed.stdout)["ending"] == "stopped"
    expect(panel.get_by_test_id("empty")).to_be_visible()  # nothing lives
    expect(lines).to_contain_text("Ray runtime started")  # its log outlives it

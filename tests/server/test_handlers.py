"""The routes of the server extension: who is let in, what they say, and that they neither block nor keep anything alive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.auth import Authorizer

from jupyter_aicluster.clusters import Clusters, Wish
from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.jupyter import handlers
from jupyter_aicluster.loop import background
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Ending, State, Status
from jupyter_aicluster.store import Record
from jupyter_aicluster.testing.fake import FakeScheduler
from tests.server.conftest import Ask

UID = "0123456789ab"
ROUTES = [
    ("GET", "clusters"),
    ("GET", f"clusters/{UID}/logs"),
    ("GET", f"clusters/{UID}/logs/0/driver-main"),
    ("POST", f"clusters/{UID}/keep"),
    ("POST", f"clusters/{UID}/stop"),
]


def put(clusters: Clusters, uid: str = UID, name: str = "fox", **changes: Any) -> Record:
    spec = ClusterSpec(gpus=4, env=(("TOKEN", "secret"),))
    record = Record(Handle("fake", uid, name), spec, 1_700_000_000.0, clusters.store.run(uid).path, **changes)
    clusters.store.put(record)
    return record


def ended(cause: str = "its job is done") -> Status:
    return Status(State.ENDED, end=End(Ending.DONE, cause, 1_700_000_100.0))


def submit(clusters: Clusters, folder: Path, gpus: int = 4) -> Record:
    async def send() -> Record:
        plan = await clusters.plan(ClusterSpec(gpus=gpus), clusters.backend("fake"))
        return await clusters.submit(plan, Wish(time_s=60, keep_s=60, working_dir=folder))

    return background.run(send())


# ---- who is let in


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nobody_without_a_token_is_told_or_obeyed(ask: Ask, clusters: Clusters, scheduler: FakeScheduler, method: str, path: str) -> None:
    put(clusters)
    status, body = ask(method, path, {"seconds": 60}, headers={"Authorization": ""})
    assert status == 403
    assert "fox" not in str(body)
    assert scheduler.calls == []


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_an_authorizer_decides_by_resource_and_action(
    ask: Ask, clusters: Clusters, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    put(clusters)
    asked = []

    def never(self: Authorizer, handler: object, user: object, action: str, resource: str) -> bool:
        asked.append((action, resource))
        return False

    monkeypatch.setattr(type(jp_serverapp.authorizer), "is_authorized", never)
    assert ask(method, path, {"seconds": 60})[0] == 403
    assert asked == [("write" if method == "POST" else "read", "aicluster")]


def test_a_form_of_another_site_cannot_stop_a_cluster(ask: Ask, clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path) -> None:
    record = submit(clusters, tmp_path)
    before = len(scheduler.calls)
    # A cookie, as the browser sends it with such a form, and no XSRF token.
    assert ask("POST", f"clusters/{record.handle.uid}/stop", headers={"Authorization": "", "Origin": "https://evil.test"})[0] in (403, 404)
    assert "cancel" not in scheduler.calls[before:]


# ---- what they say


def test_clusters_are_those_of_the_records_whoever_made_them(ask: Ask, clusters: Clusters) -> None:
    put(clusters, status=ended("its job is done"), nodes=2, simulated=True)
    status, body = ask("GET", "clusters")
    assert status == 200
    [cluster] = body["clusters"]
    assert (cluster["uid"], cluster["name"], cluster["gpus"], cluster["nodes"], cluster["state"]) == (UID, "fox", 4, 2, "ended")
    assert "its job is done" in cluster["sentence"]
    assert (cluster["can_stop"], cluster["can_keep"], cluster["ended_s"]) == (False, False, 1_700_000_100.0)
    assert body["now_s"] > 1_700_000_100
    assert "secret" not in str(body)


def test_while_somebody_looks_the_records_become_true(ask: Ask, clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path) -> None:
    first, second = submit(clusters, tmp_path, gpus=8), submit(clusters, tmp_path, gpus=4)
    until(ask, lambda found: found[first.handle.uid]["state"] == "starting" and found[second.handle.uid]["state"] == "queued")
    scheduler.finish(first.handle, cause="it is over")
    until(ask, lambda found: "it is over" in found[first.handle.uid]["sentence"])


def until(ask: Ask, so: Any) -> None:
    for _ in range(200):
        found = {cluster["uid"]: cluster for cluster in ask("GET", "clusters")[1]["clusters"]}
        if so(found):
            return
        background.run(asyncio.sleep(0.01))
    pytest.fail(str(found))


def test_asking_often_asks_the_scheduler_no_more_often(
    ask: Ask, clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(clusters.backend("fake")), "poll_s", (60.0, 60.0))
    submit(clusters, tmp_path)
    before = len(scheduler.calls)
    for _ in range(10):
        ask("GET", "clusters")
    assert scheduler.calls[before:].count("observe") == 1


def test_stop_gives_back_what_has_no_hub_and_says_so_at_once(
    ask: Ask, clusters: Clusters, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    record = submit(clusters, tmp_path)
    assert ask("POST", f"clusters/{record.handle.uid}/stop") == (202, {})
    assert scheduler.free == 8
    until(ask, lambda found: found[record.handle.uid]["state"] == "ended")
    assert ask("POST", f"clusters/{record.handle.uid}/stop") == (202, {})  # again: no difference


def test_keep_of_a_cluster_without_a_hub_is_a_sentence(ask: Ask, clusters: Clusters, tmp_path: Path) -> None:
    record = submit(clusters, tmp_path)
    status, body = ask("POST", f"clusters/{record.handle.uid}/keep", {"seconds": 60})
    assert (status, body["message"]) == (503, f"{record.handle.name} has no hub yet")
    put(clusters, status=ended())
    status, body = ask("POST", f"clusters/{UID}/keep", {"seconds": 60})
    assert (status, body["message"], bool(body["hint"])) == (409, "fox has ended: its GPUs are back", True)


@pytest.mark.parametrize("body", [None, {}, [], {"seconds": "60"}, {"seconds": 0}, {"seconds": -1}, {"seconds": 1e9}, {"seconds": True}])
def test_keep_wants_seconds(ask: Ask, clusters: Clusters, body: object) -> None:
    put(clusters)
    assert ask("POST", f"clusters/{UID}/keep", body)[0] == 400


def test_logs_of_an_ended_cluster_come_from_its_storage(ask: Ask, clusters: Clusters) -> None:
    record = put(clusters, status=ended())
    for attempt, text in (("2", b"old"), ("10", "0123 é\n".encode())):
        path = record.run / "logs" / attempt / "1" / "driver-main"
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
    status, body = ask("GET", f"clusters/{UID}/logs")
    assert (status, body["streams"]) == (200, [{"node": 1, "stream": "driver-main", "size": 8}])
    log = f"clusters/{UID}/logs/1/driver-main"
    assert ask("GET", log) == (200, "0123 é\n".encode())
    assert ask("GET", log, params={"from": "4"}) == (200, " é\n".encode())
    assert ask("GET", log, params={"from": "99"}) == (200, b"")
    assert ask("GET", log, params={"from": "-1"})[0] == 400
    assert ask("GET", f"clusters/{UID}/logs/0/nothing") == (200, b"")


@pytest.mark.parametrize(
    "path", [f"{UID}/logs/0/..", f"{UID}/logs/0/.", f"{UID}/logs/0/%2e%2e%2f%2e%2e", "../records/logs", f"{UID}x/logs"]
)
def test_no_path_leads_out_of_the_run_folder(ask: Ask, clusters: Clusters, path: str) -> None:
    record = put(clusters, status=ended())
    (record.run / "logs" / "1").mkdir(parents=True)
    (record.run / "submission.json").write_text("mine")
    status, body = ask("GET", f"clusters/{path}")
    assert "mine" not in str(body)
    assert status in (400, 404) or body == b""


def test_a_cluster_nobody_knows_is_404(ask: Ask, clusters: Clusters) -> None:
    for method, path in ROUTES[1:]:
        status, body = ask(method, path, {"seconds": 60})
        assert (status, body["message"]) == (404, "there is no such cluster any more")


def test_a_configuration_that_cannot_be_is_told_in_its_own_words(ask: Ask, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UsageError("a configured value cannot be", evidence="keep_s", hint="look there")

    monkeypatch.setattr(handlers, "overview", refuse)
    assert ask("GET", "clusters") == (
        400,
        {"message": "a configured value cannot be", "evidence": "keep_s", "hint": "look there"},
    )


# ---- what they leave alone


def test_no_request_counts_as_activity(ask: Ask, clusters: Clusters, jp_serverapp: Any) -> None:
    put(clusters, status=ended())
    settings = jp_serverapp.web_app.settings
    before = settings.get("api_last_activity")
    for method, path in ROUTES:
        ask(method, path, {"seconds": 60})
    assert settings.get("api_last_activity") == before


def test_a_scheduler_that_hangs_does_not_hold_up_the_server(
    ask: Ask, clusters: Clusters, jp_fetch: Any, jp_asyncio_loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(clusters)
    release = asyncio.Event()

    async def hang(*_: object) -> None:
        await release.wait()

    monkeypatch.setattr(type(clusters.backend("fake")), "cancel", hang)

    async def both() -> None:
        stuck = asyncio.ensure_future(jp_fetch("aicluster", "clusters", UID, "stop", method="POST", body="{}"))
        done = await jp_fetch("api", "status")
        assert done.code == 200
        assert not stuck.done()
        asyncio.run_coroutine_threadsafe(_set(release), background._running())
        assert (await stuck).code == 202

    jp_asyncio_loop.run_until_complete(both())


async def _set(event: asyncio.Event) -> None:
    event.set()

"""HubClient against a real hub, and against whatever else may answer."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from jupyter_aicluster.backends.base import Dialer
from jupyter_aicluster.client import HubClient
from jupyter_aicluster.errors import AIClusterError, ClusterEnded, HubUnreachable, NotFound, ProtocolSkew, UsageError
from jupyter_aicluster.events import Cursor, Kind
from jupyter_aicluster.protocol import CellPhase, CellRequest
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.tls import serving_context
from tests.unit.hubs import Served, make_run, serving, submission


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run", submission())


@pytest.fixture
async def hub(run: RunDir, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(run, submission(), tmp_path / "scratch") as served:
        yield served


@pytest.fixture
async def client(hub: Served) -> AsyncIterator[HubClient]:
    async with HubClient(Dialer(hub.base), hub.run) as made:
        yield made


async def test_a_cell_with_its_inputs_and_its_values_back(hub: Served, client: HubClient, tmp_path: Path) -> None:
    data = b"payload" * 400_000
    (tmp_path / "inputs").write_bytes(data)
    request = CellRequest("c1", "main", "x = 1", inputs=hashlib.sha256(data).hexdigest())
    for _ in range(2):
        report = await client.run_cell(request, tmp_path / "inputs")
        assert report.phase == CellPhase.WAITING
    assert (hub.run.files / str(request.inputs)).read_bytes() == data
    assert await client.cell("c1") == report
    (hub.run.values / "c1").write_bytes(data)
    await client.value("c1", tmp_path / "value")
    assert (tmp_path / "value").read_bytes() == data


async def test_small_calls(hub: Served, client: HubClient) -> None:
    hub.hub.logs.append(1, 0, "ray", 0, b"hello")
    assert (await client.cluster())["name"] == "fox"
    assert (await client.lease())["state"] == "starting"
    assert (await client.keep(60.0))["uid"] == hub.hub.submission.uid
    assert await client.streams() == [{"node": 0, "stream": "ray", "size": 5}]
    assert await client.log(0, "ray", 1) == b"ello"
    await client.interrupt("never")
    await client.stop()
    assert hub.brain.end is not None


async def test_events_from_a_cursor_until_a_cut_is_a_word_on_the_wire_only(hub: Served, client: HubClient) -> None:
    for n in range(5):
        hub.hub.emit(Kind.NOTICE, {"text": str(n)})
    heard = []
    async for event in client.events(Cursor(1, 3)):
        heard.append(event.seq)
        if len(heard) == 3:
            break
    assert heard == [4, 5, 6]


async def test_what_the_hub_refuses_is_the_error_it_is(hub: Served, client: HubClient, run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such cell run"):
        await client.cell("never")
    with pytest.raises(NotFound, match="left no values"):
        await client.value("never", tmp_path / "value")
    (tmp_path / "inputs").write_bytes(b"changed meanwhile")
    with pytest.raises(UsageError, match="digest"):
        await client.run_cell(CellRequest("c1", "main", "", inputs="0" * 64), tmp_path / "inputs")
    await client.stop()
    with pytest.raises(ClusterEnded, match="stopped by its user"):
        await client.run_cell(CellRequest("c2", "main", ""), None)
    run.hub_token.write_text("wrong")
    async with HubClient(Dialer(hub.base), run) as stranger:
        with pytest.raises(HubUnreachable, match="token"):
            await stranger.cluster()


async def test_another_version_is_said_plainly(hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_aicluster.client.VERSION", 99)
    async with HubClient(Dialer(hub.base), hub.run) as client:
        with pytest.raises(ProtocolSkew, match="the client 99"):
            await client.cluster()


async def test_nobody_there_and_somebody_else_there(hub: Served, run: RunDir, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    other = make_run(tmp_path / "other", submission())
    for base, where in ((f"https://127.0.0.1:{port}", run), (hub.base, other)):
        async with HubClient(Dialer(base, "tcp"), where) as client:
            with pytest.raises(HubUnreachable) as caught:
                await client.cluster()
            assert base in caught.value.what


async def test_a_proxy_that_answers_is_named(run: RunDir) -> None:
    async def sorry(request: web.Request) -> web.Response:
        return web.Response(status=403, text="<html>Access denied by proxy</html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/v1/cluster", sorry)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening, ssl_context=serving_context(run.hub_cert, run.hub_key)).start()
    try:
        async with HubClient(Dialer(f"https://127.0.0.1:{listening.getsockname()[1]}"), run) as client:
            with pytest.raises(HubUnreachable, match="perhaps a proxy") as caught:
                await client.cluster()
        assert "Access denied" in caught.value.evidence
    finally:
        await runner.cleanup()


async def test_a_disk_of_ours_is_not_the_hubs_fault(hub: Served, client: HubClient, tmp_path: Path) -> None:
    (hub.run.values / "c1").write_bytes(b"value")
    with pytest.raises(FileNotFoundError):
        await client.value("c1", tmp_path / "no" / "such" / "folder")


async def test_inputs_that_are_missing_are_not_the_clusters_end(client: HubClient) -> None:
    with pytest.raises(AIClusterError, match="not uploaded") as caught:
        await client.run_cell(CellRequest("c1", "main", "", inputs="0" * 64), None)
    assert not isinstance(caught.value, ClusterEnded)


async def test_a_line_of_many_megabytes_arrives_whole(hub: Served, client: HubClient) -> None:
    hub.hub.emit(Kind.NOTICE, {"text": "x" * 30_000_000, "level": "info"})
    hub.hub.emit(Kind.NOTICE, {"text": "after", "level": "info"})
    sizes = []
    began = time.process_time()
    async for event in client.events(Cursor()):
        if event.kind == Kind.NOTICE:
            sizes.append(len(event.data["text"]))
            if event.data["text"] == "after":
                break
    assert sizes == [30_000_000, 5]
    assert time.process_time() - began < 10  # joined once, not once a chunk


async def test_a_fault_of_the_hub_is_not_taken_for_a_proxy(hub: Served, client: HubClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.brain, "snapshot", lambda: 1 / 0)
    with pytest.raises(HubUnreachable, match="could not answer: ZeroDivisionError"):
        await client.cluster()


async def test_a_full_disk_at_the_hub_is_said(hub: Served, client: HubClient, tmp_path: Path) -> None:
    hub.run.files.rmdir()  # stands for a folder that takes no file
    (tmp_path / "inputs").write_bytes(b"x")
    request = CellRequest("c1", "main", "x", inputs=hashlib.sha256(b"x").hexdigest())
    with pytest.raises(HubUnreachable, match="storage fails"):
        await client.run_cell(request, tmp_path / "inputs")


async def test_keys_that_are_gone_are_one_sentence(run: RunDir) -> None:
    run.hub_token.unlink()
    with pytest.raises(HubUnreachable, match="keys cannot be read"):
        async with HubClient(Dialer("https://127.0.0.1:1"), run):
            pass

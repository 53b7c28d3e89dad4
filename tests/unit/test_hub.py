"""The hub over real HTTPS: who is let in, what is stored, and streams that are resumed exactly."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from jupyter_aicluster.agent import hub as module
from jupyter_aicluster.agent.hub import Hub
from jupyter_aicluster.events import Cursor, Event, Kind
from jupyter_aicluster.protocol import PROTOCOL_HEADER, TOKEN_HEADER, VERSION, Beat, CellRequest, RayState
from jupyter_aicluster.rundir import RunDir, read_json
from jupyter_aicluster.state import Ending, State
from jupyter_aicluster.tls import pinned_context
from tests.unit.hubs import Served, make_run, serving, submission

CELL = CellRequest("c1", "main", "x = 1", after_success_s=60.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run", submission())


@pytest.fixture
async def hub(run: RunDir, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(run, submission(), tmp_path / "scratch") as served:
        yield served


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def join(hub: Served, nodes: int = 2) -> None:
    for k in range(nodes):
        for ray in (RayState.ABSENT, RayState.UP):
            assert (await hub.ask("POST", f"/v1/nodes/{k}/beat", json=Beat(k, f"b{k}", 1, host=f"h{k}", ray=ray).to_json()))[0] == 200


async def lines_of(response: aiohttp.ClientResponse, most: int) -> list[Event]:
    found = []
    async for line in response.content:
        found.append(Event.from_line(line))
        if len(found) == most:
            break
    return found


async def journaled(hub: Served, since: Cursor, most: int) -> list[Event]:
    async with hub.http.get(f"{hub.base}/v1/events?since={since}") as response:
        found: list[Event] = []
        while len(found) < most:
            found += [event for event in await lines_of(response, 1) if event.seq]
        return found


# ---- who is let in


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": ""},
        {TOKEN_HEADER: "wrong"},
        {TOKEN_HEADER: "wr\udcffong"},
        {TOKEN_HEADER: "ünï"},
    ],
    ids=repr,
)
async def test_without_the_token_nothing_is_said(hub: Served, headers: dict[str, str]) -> None:
    connector = aiohttp.TCPConnector(ssl=pinned_context(hub.run.hub_cert))
    async with aiohttp.ClientSession(headers=headers, connector=connector) as http:
        for method, path in (
            ("GET", "/v1/cluster"),
            ("GET", "/v1/events"),
            ("POST", "/v1/stop"),
            ("PUT", "/v1/values/c1"),
            ("POST", "/v1/nodes/0/beat"),
        ):
            async with http.request(method, hub.base + path) as response:
                assert response.status == 401
                said = await response.json()
                assert set(said) == {"error", "hint"}
    assert hub.brain.end is None


async def test_the_token_is_taken_from_either_header(hub: Served) -> None:
    token = hub.run.hub_token.read_text()
    connector = aiohttp.TCPConnector(ssl=pinned_context(hub.run.hub_cert))
    async with aiohttp.ClientSession(connector=connector) as http:
        for headers in (
            {"Authorization": f"Bearer {token}"},
            {TOKEN_HEADER: token},
            {TOKEN_HEADER: token, "Authorization": "Bearer the proxy's"},
        ):
            async with http.get(hub.base + "/v1/cluster", headers=headers) as response:
                assert response.status == 200


async def test_a_hub_that_does_not_hold_the_key_is_never_told_the_token(hub: Served, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", submission())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=pinned_context(other.hub_cert))) as http:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.get(hub.base + "/v1/cluster")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl.create_default_context())) as http:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.get(hub.base + "/v1/cluster")


async def test_another_protocol_version_is_told_so(hub: Served) -> None:
    status, said = await hub.ask("GET", "/v1/cluster", headers={PROTOCOL_HEADER: str(VERSION + 1)})
    assert status == 426
    assert f"speaks protocol {VERSION}, the client {VERSION + 1}" in said["error"]


@pytest.mark.parametrize(
    "path",
    ["/v1/cells/%2e%2e", "/v1/values/..%2fsecrets%2fhub.key", "/v1/files/a%20b", "/v1/logs/0/%00", "/v1/drivers/%2e%2e/orders?start=1"],
)
async def test_names_in_a_path_are_plain(hub: Served, path: str) -> None:
    async with hub.http.get(URL(hub.base + path, encoded=True)) as response:
        assert response.status in (400, 404)
        assert b"PRIVATE" not in await response.read()


@pytest.mark.parametrize("name", ["../x", "", "a b", "a/b"])
async def test_a_cells_names_are_plain(hub: Served, name: str) -> None:
    for changes in ({"cell_id": name}, {"session": name}):
        status, said = await hub.ask("POST", "/v1/cells", json=CELL.to_json() | changes)
        assert status == 400
        assert "plain names" in said["error"]
    assert hub.brain.requests == {}


# ---- files and values


async def test_files_go_by_content(hub: Served) -> None:
    data = bytes(range(256)) * 4000
    assert (await hub.ask("POST", f"/v1/files/{sha(data)}", data=data))[0] == 200
    path = hub.run.files / sha(data)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.stat().st_ino
    assert (await hub.ask("POST", f"/v1/files/{sha(data)}", data=data))[0] == 200
    assert path.stat().st_ino == before
    async with hub.http.get(f"{hub.base}/v1/files/{sha(data)}") as response:
        assert await response.read() == data
    assert (await hub.ask("GET", f"/v1/files/{sha(b'other')}"))[0] == 404


async def test_a_wrong_digest_is_refused_and_leaves_nothing(hub: Served) -> None:
    status, said = await hub.ask("POST", f"/v1/files/{sha(b'right')}", data=b"wrong")
    assert status == 422
    assert "digest" in said["error"]
    assert list(hub.run.files.iterdir()) == []


async def test_an_upload_that_is_cut_leaves_nothing(hub: Served) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        raise ConnectionError("cut")

    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await hub.ask("POST", f"/v1/files/{sha(b'x' * 200_000)}", data=half())
    async with asyncio.timeout(5):
        while list(hub.run.files.iterdir()):
            await asyncio.sleep(0.01)


async def test_values_are_replaced_whole(hub: Served) -> None:
    assert (await hub.ask("GET", "/v1/values/c1"))[0] == 404
    for data in (b"first", b"2nd"):
        assert (await hub.ask("PUT", "/v1/values/c1", data=data))[0] == 200
        async with hub.http.get(f"{hub.base}/v1/values/c1") as response:
            assert await response.read() == data
    assert [path.name for path in hub.run.values.iterdir()] == ["c1"]


# ---- cells


async def test_a_cell_is_posted_once_and_can_be_asked_for(hub: Served) -> None:
    for _ in range(2):
        status, report = await hub.ask("POST", "/v1/cells", json=CELL.to_json())
        assert (status, report["phase"]) == (200, "waiting")
    assert hub.brain.sessions["main"].cells == ["c1"]
    assert (await hub.ask("GET", "/v1/cells/c1"))[1]["cell_id"] == "c1"
    assert (await hub.ask("GET", "/v1/cells/c1/request"))[1]["code"] == "x = 1"
    assert (await hub.ask("GET", "/v1/cells/never"))[0] == 404


async def test_a_cell_whose_inputs_are_not_here_is_refused(hub: Served) -> None:
    wanted = CELL.to_json() | {"inputs": sha(b"payload")}
    status, said = await hub.ask("POST", "/v1/cells", json=wanted)
    assert (status, hub.brain.requests) == (422, {})
    assert "not uploaded" in said["error"]
    await hub.ask("POST", f"/v1/files/{sha(b'payload')}", data=b"payload")
    assert (await hub.ask("POST", "/v1/cells", json=wanted))[0] == 200


async def test_an_ending_cluster_takes_no_cell_and_says_why(hub: Served) -> None:
    await hub.ask("POST", "/v1/stop")
    status, said = await hub.ask("POST", "/v1/cells", json=CELL.to_json())
    assert status == 409
    assert "stopped by its user" in said["error"]


async def test_keep_and_stop(hub: Served) -> None:
    await join(hub)
    _, snapshot = await hub.ask("POST", "/v1/keep", json={"seconds": 7200})
    assert snapshot["deadlines"]["keep"] - snapshot["joined_s"] == pytest.approx(7200, abs=60)
    assert (await hub.ask("POST", "/v1/stop"))[0] == 200
    assert hub.brain.end is not None
    assert hub.brain.end.ending is Ending.STOPPED


async def test_clients_renew_the_lease_nodes_and_drivers_do_not(hub: Served) -> None:
    before = hub.brain.client_s
    await join(hub)
    at_ready = hub.brain.client_s
    await hub.ask("GET", "/v1/cells/c1/request")
    await hub.ask("PUT", "/v1/values/c1", data=b"")
    await hub.ask("POST", "/v1/nodes/0/beat", json=Beat(0, "b0", 1, ray=RayState.UP).to_json())
    assert hub.brain.client_s == at_ready
    assert (await hub.ask("POST", "/v1/lease"))[0] == 200
    assert hub.brain.client_s > at_ready >= before


# ---- drivers


async def order(response: aiohttp.ClientResponse) -> tuple[str, str]:
    said = json.loads(await response.content.readline())
    return said["order"], said["cell_id"]


async def test_a_drivers_life(hub: Served) -> None:
    await join(hub)
    await hub.ask("POST", "/v1/cells", json=CELL.to_json())

    async def say(batch: int, *events: dict[str, Any], start: int = 1) -> int:
        return (await hub.ask("POST", "/v1/drivers/main/events", json={"start": start, "batch": batch, "events": list(events)}))[0]

    async with hub.http.get(f"{hub.base}/v1/drivers/main/orders?start=1") as stream:
        assert await say(1, {"k": "driver", "d": {"ready": True}}) == 200
        assert await order(stream) == ("run", "c1")
        assert await say(2, {"k": "cell", "d": {"cell_id": "c1", "phase": "running"}}) == 200
        await hub.ask("POST", "/v1/cells/c1/interrupt")
        assert await order(stream) == ("interrupt", "c1")
    async with hub.http.get(f"{hub.base}/v1/drivers/main/orders?start=1") as stream:  # cut and connected again
        assert await order(stream) == ("interrupt", "c1")
        await hub.ask("POST", "/v1/cells/c1/interrupt")
        assert await stream.content.read() == b""  # another process serves the session now
    assert await say(3, start=1) == 410
    assert await say(1, start=2) == 200


# ---- events


async def test_events_resume_exactly_after_any_cut(hub: Served) -> None:
    for n in range(50):
        hub.hub.emit(Kind.NOTICE, {"text": f"{n} ünï"})
    heard: list[Event] = []
    for most in (1, 7, 3, 20):
        heard += await journaled(hub, Cursor(heard[-1].attempt, heard[-1].seq) if heard else Cursor(), most)
    for n in range(50, 60):  # while nobody listens
        hub.hub.emit(Kind.NOTICE, {"text": f"{n} ünï"})
    total = 60 + 1  # and the first STATE
    heard += await journaled(hub, Cursor(1, heard[-1].seq), total - len(heard))
    assert [event.seq for event in heard] == list(range(1, total + 1))
    assert [event.data["text"] for event in heard if event.kind == Kind.NOTICE] == [f"{n} ünï" for n in range(60)]


async def test_events_of_a_later_attempt_follow_those_of_the_first(hub: Served) -> None:
    hub.hub.emit(Kind.STATE, {"state": State.STARTING, "attempt": 2, "cause": "node 1 left"})
    hub.hub.emit(Kind.NOTICE, {"text": "second"})
    heard = await journaled(hub, Cursor(), 3)
    assert [(event.attempt, event.seq, event.kind) for event in heard] == [(1, 1, "state"), (2, 1, "state"), (2, 2, "notice")]
    assert [event.seq for event in await journaled(hub, Cursor(2, 1), 1)] == [2]


async def test_what_happens_is_heard_while_listening_live_ones_too(hub: Served) -> None:
    async with hub.http.get(f"{hub.base}/v1/events?since=1.1") as response:
        await hub.ask("POST", "/v1/nodes/1/logs/ray?attempt=1&at=0", data=b"hello\n")
        (log,) = await lines_of(response, 1)
        assert (log.kind, log.seq, log.data) == ("log", 0, {"node": 1, "stream": "ray", "offset": 0, "text": "hello\n"})
        sample = {"index": "0", "util_percent": 7.0}
        await hub.ask("POST", "/v1/nodes/1/beat", json=Beat(1, "b1", 1, samples=(sample,)).to_json())
        kinds = {event.kind for event in await lines_of(response, 3)}
        assert kinds == {"node", "gate", "gpus"}


async def test_a_silent_stream_says_that_it_lives(hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PULSE_S", 0.01)
    async with hub.http.get(f"{hub.base}/v1/events?since=1.1") as response:
        assert {event.kind for event in await lines_of(response, 2)} == {"pulse"}


async def test_the_stream_ends_with_the_cluster_and_end_is_its_last_word(run: RunDir, tmp_path: Path) -> None:
    async with serving(run, submission(), tmp_path / "scratch", live=True) as hub:
        await join(hub)
        async with hub.http.get(f"{hub.base}/v1/events") as response:
            await hub.ask("POST", "/v1/stop")
            for k in (0, 1):
                _, said = await hub.ask("POST", f"/v1/nodes/{k}/beat", json=Beat(k, f"b{k}", 1, leaving="the cluster ends").to_json())
                assert said["stop"]
            events = [Event.from_line(line) async for line in response.content]
    assert (events[-1].kind, events[-1].data["ending"]) == ("end", "stopped")
    assert [event.seq for event in events if event.seq] == list(range(1, len([event for event in events if event.seq]) + 1))


async def test_a_stop_file_ends_it_where_no_hub_was_there_to_be_told(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    run.stop.touch()
    async with serving(run, submission(), tmp_path / "scratch", live=True) as hub:
        async with asyncio.timeout(5):
            await hub.hub.over.wait()
        assert hub.brain.end is not None
        assert hub.brain.end.ending is Ending.STOPPED


async def test_where_it_listens_and_which_attempt_it_is_in_is_written_for_those_who_look(hub: Served) -> None:
    port = int(hub.base.rpartition(":")[2])
    assert read_json(hub.run.hub) == {"host": "127.0.0.1", "port": port, "pid": os.getpid(), "attempt": 1, "protocol": VERSION}
    hub.hub.emit(Kind.STATE, {"state": State.STARTING, "attempt": 2})
    told = read_json(hub.run.hub)
    assert told is not None
    assert (told["port"], told["attempt"]) == (port, 2)


# ---- logs


async def test_logs_by_range_and_the_list_of_streams(hub: Served) -> None:
    async def ship(at: int, data: bytes) -> int:
        return int((await hub.ask("POST", f"/v1/nodes/1/logs/worker-7.out?attempt=1&at={at}", data=data))[1]["have"])

    assert await ship(0, b"abc") == 3
    assert await ship(5, b"f") == 3  # a hole: resume at 3
    assert await ship(1, b"bcdef") == 6
    async with hub.http.get(f"{hub.base}/v1/logs/1/worker-7.out?from=2") as response:
        assert await response.read() == b"cdef"
    async with hub.http.get(f"{hub.base}/v1/logs/0/nothing") as response:
        assert (response.status, await response.read()) == (200, b"")
    assert (await hub.ask("GET", "/v1/logs"))[1] == [{"node": 1, "stream": "worker-7.out", "size": 6}]


async def test_live_text_is_the_newest_part_with_its_offset(hub: Served) -> None:
    async with hub.http.get(f"{hub.base}/v1/events?since=1.1") as response:
        await hub.ask("POST", "/v1/nodes/0/logs/ray?attempt=1&at=0", data=b"a" * 5000 + b"end")
        (log,) = await lines_of(response, 1)
    assert (log.data["offset"], len(log.data["text"]), log.data["text"][-4:]) == (1003, 4000, "aend")


# ---- the program


async def test_the_hub_never_imports_ray(tmp_path: Path) -> None:
    code = (
        "import sys, jupyter_aicluster.agent.hub, jupyter_aicluster.agent.node; print([m for m in sys.modules if m.split('.')[0] == 'ray'])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert said.decode().strip() == "[]"


async def test_without_a_submission_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await module.serve(RunDir(tmp_path), "127.0.0.1") == 2
    assert "no submission" in capsys.readouterr().err


def test_what_it_takes_is_what_was_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", submission())
    hub = Hub(run, submission(cell=CELL.to_json()), "token", lambda: 0.0, tmp_path / "scratch")
    assert hub.brain.reports["c1"].phase == "waiting"

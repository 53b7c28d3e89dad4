"""The hub: one process per cluster that serves its state, journal, cells and logs. It never imports ray.

All decisions are the brain's; this module is HTTP, files and the clock around it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from jupyter_aicluster.agent.brain import Brain
from jupyter_aicluster.agent.clock import steady_clock
from jupyter_aicluster.agent.journal import Journal, Mirror
from jupyter_aicluster.agent.lifeline import watch_lifeline
from jupyter_aicluster.agent.logs import Gap, LogBook
from jupyter_aicluster.agent.streams import Stream, Streams
from jupyter_aicluster.events import LIVE, Cursor, Event, Kind
from jupyter_aicluster.procs import TempDirRefused, hub_tmp, private_tmp
from jupyter_aicluster.protocol import (
    OBSERVER_HEADER,
    PROTOCOL_HEADER,
    PULSE_S,
    TOKEN_HEADER,
    VERSION,
    Beat,
    CellRequest,
    Order,
    Submission,
    is_id,
)
from jupyter_aicluster.rundir import RunDir, read_json, write_json
from jupyter_aicluster.state import End, Ending
from jupyter_aicluster.tls import serving_context

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TICK_S = 0.5
GOODBYE_S = 10.0  # how long nodes may take to end their part
LINGER_S = 2.0  # how long readers of the event stream may take to hear the end


class Hub:
    def __init__(self, run: RunDir, submission: Submission, token: str, clock: Callable[[], float], scratch: Path) -> None:
        self.run, self.submission = run, submission
        self._token = token
        self._clock = clock
        self.journal = Journal(scratch / "journal")
        self.logs = LogBook(scratch / "logs")
        self.streams = Streams()
        self._attempt = 1
        self._address = ("", 0)
        self.over = asyncio.Event()  # END was said
        self.brain = Brain(submission, clock, self.emit, self._tail)

    def emit(self, kind: Kind, data: Mapping[str, Any]) -> None:
        if kind is Kind.STATE and int(data["attempt"]) != self._attempt:
            self._attempt = int(data["attempt"])
            self.publish()
        if kind in LIVE:
            event = Event(self._attempt, 0, self._clock(), kind, data)
        else:
            event = self.journal.append(self._attempt, self._clock(), kind, dict(data))
        self.streams.say(event)

    def publish(self, address: tuple[str, int] | None = None) -> None:
        """Write hub.json: where to dial, and the attempt, which the scheduler does not know when Ray restarts in place."""
        self._address = address or self._address
        host, port = self._address
        try:
            write_json(self.run.hub, {"host": host, "port": port, "pid": os.getpid(), "attempt": self._attempt, "protocol": VERSION})
        except OSError as error:
            if address:
                raise  # nobody would ever find us
            print(f"hub.json is out of date: {error}", file=sys.stderr, flush=True)

    def _tail(self, node: int, stream: str) -> str:
        return self.logs.tail(self._attempt, node, stream)

    # ---- the server

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024 * 1024)
        client, node, driver = self._client, "/v1/nodes/{node:\\d+}", "/v1/drivers/{session}"
        app.add_routes(
            [
                web.get("/v1/cluster", client(self.get_cluster)),
                web.post("/v1/lease", client(self.get_cluster)),
                web.post("/v1/cells", client(self.post_cell)),
                web.get("/v1/cells/{cell}", client(self.get_cell)),
                web.post("/v1/cells/{cell}/interrupt", client(self.post_interrupt)),
                web.get("/v1/values/{cell}", client(self.get_value)),
                web.post("/v1/files/{sha}", client(self.post_file)),
                web.get("/v1/events", client(self.get_events)),
                web.get("/v1/logs", client(self.get_streams)),
                web.get("/v1/logs/{node:\\d+}/{stream}", client(self.get_log)),
                web.post("/v1/keep", client(self.post_keep)),
                web.post("/v1/reset", client(self.post_reset)),
                web.post("/v1/stop", client(self.post_stop)),
                web.post(f"{node}/beat", self.post_beat),
                web.post(f"{node}/logs/{{stream}}", self.post_log),
                web.get(f"{driver}/orders", self.get_orders),
                web.post(f"{driver}/events", self.post_driver_events),
                web.get("/v1/cells/{cell}/request", self.get_request),
                web.get("/v1/files/{sha}", self.get_file),
                web.put("/v1/values/{cell}", self.put_value),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = request.headers.get(TOKEN_HEADER) or bearer
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._token.encode()):
            return _error(401, "wrong or missing token", "attach with the records of the user who made this cluster")
        spoken = request.headers.get(PROTOCOL_HEADER, str(VERSION))
        if spoken != str(VERSION):
            return _error(
                426,
                f"this cluster speaks protocol {VERSION}, the client {spoken}",
                "use the version of jupyter-aicluster that made the cluster, or stop it",
            )
        if any(not is_id(value) for value in request.match_info.values()):
            return _error(400, f"not a valid name in {request.path!r}", "letters, digits, '.', '_' and '-'")
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001  # boundary: the client must not take an answer without our words for a proxy's
            traceback.print_exc()
            if isinstance(error, OSError):
                return _error(507, f"the cluster's storage fails: {error}", "is there room on that disk?")
            return _error(
                500, f"the hub could not answer: {type(error).__name__}: {error}", "its log says more: agent.log in the run folder"
            )

    def _client(self, handler: Handler) -> Handler:
        async def seen(request: web.Request) -> web.StreamResponse:
            if OBSERVER_HEADER not in request.headers:
                self.brain.client_seen()
            return await handler(request)

        return seen

    # ---- clients

    async def get_cluster(self, request: web.Request) -> web.Response:
        return web.json_response(self.brain.snapshot())

    async def post_cell(self, request: web.Request) -> web.Response:
        wanted = CellRequest.from_json(await request.json())
        if not (is_id(wanted.cell_id) and is_id(wanted.session)):
            return _error(400, "cell id and session must be plain names", "letters, digits, '.', '_' and '-'")
        if self.brain.end:
            return _error(409, f"this cluster is ending: {self.brain.end.cause}", "run the cell again: a new cluster is asked for")
        if wanted.inputs and not self._file(wanted.inputs).exists():
            return _error(422, "the cell's inputs were not uploaded", "POST /v1/files/{sha256} first")
        report = self.brain.add_cell(wanted)
        self.streams.wake()
        return web.json_response(report.to_json())

    async def get_cell(self, request: web.Request) -> web.Response:
        report = self.brain.reports.get(request.match_info["cell"])
        return web.json_response(report.to_json()) if report else _error(404, "no such cell run", "see GET /v1/cluster")

    async def post_interrupt(self, request: web.Request) -> web.Response:
        self.brain.interrupt(request.match_info["cell"])
        self.streams.wake()
        return web.json_response({})

    async def post_keep(self, request: web.Request) -> web.Response:
        self.brain.keep(float((await request.json())["seconds"]), alone=OBSERVER_HEADER in request.headers)
        return web.json_response(self.brain.snapshot())

    async def post_reset(self, request: web.Request) -> web.Response:
        if not self.brain.reset(str((await request.json())["session"])):
            return _error(422, "a cell of this notebook runs there", "interrupt it first: %gpujob interrupt")
        self.streams.wake()
        return web.json_response({})

    async def post_stop(self, request: web.Request) -> web.Response:
        self.brain.finish(Ending.STOPPED, "stopped by its user")
        return web.json_response({})

    async def get_value(self, request: web.Request) -> web.StreamResponse:
        path = self.run.values / request.match_info["cell"]
        return web.FileResponse(path) if path.exists() else _error(404, "this cell run left no values", "its report names them")

    async def post_file(self, request: web.Request) -> web.Response:
        """Inputs by content: what is already there is not written again; a wrong digest is refused."""
        wanted = request.match_info["sha"]
        path = self._file(wanted)
        if not path.exists() and not await _receive(request, path, wanted):
            return _error(422, "the upload does not have the digest it was announced with", "send it again")
        return web.json_response({})

    async def get_streams(self, request: web.Request) -> web.Response:
        attempt = _count(request, "attempt", self.brain.attempt)
        return web.json_response([{"node": node, "stream": stream, "size": size} for node, stream, size in self.logs.streams(attempt)])

    async def get_log(self, request: web.Request) -> web.Response:
        attempt, start = _count(request, "attempt", self.brain.attempt), _count(request, "from", 0)
        data = self.logs.read(attempt, int(request.match_info["node"]), request.match_info["stream"], start)
        return web.Response(body=data, content_type="application/octet-stream")

    async def get_events(self, request: web.Request) -> web.StreamResponse:
        """NDJSON: the journal after ``since``, then what happens, live events in between; ends with the cluster."""
        cursor = _cursor(request)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "X-Accel-Buffering": "no"})
        await response.prepare(request)
        stream = self.streams.open()
        try:
            while True:
                cursor = await self._send_new(response, stream, cursor)
                if self.over.is_set():
                    await self._send_new(response, stream, cursor)
                    break
                if not await stream.wait(PULSE_S):
                    await response.write(Event(self._attempt, 0, self._clock(), Kind.PULSE, {}).to_line())
        except (ConnectionError, asyncio.CancelledError):
            pass  # the reader went away
        finally:
            self.streams.close(stream)
        return response

    async def _send_new(self, response: web.StreamResponse, stream: Stream, cursor: Cursor) -> Cursor:
        for event in stream.take_live():
            await response.write(event.to_line())
        while True:
            lines = list(self.journal.after(cursor))
            if not lines:
                return cursor
            await response.write(b"".join(line for _, line in lines))
            cursor = lines[-1][0]

    # ---- node programs

    async def post_beat(self, request: web.Request) -> web.Response:
        beat = Beat.from_json(await request.json())
        orders = self.brain.beat(beat).to_json()
        if self.brain.ranks.groups:
            self.streams.wake()  # a rank that has ended changes what the others should do
        return web.json_response(orders)

    async def post_log(self, request: web.Request) -> web.Response:
        attempt, node, stream = _count(request, "attempt", 1), int(request.match_info["node"]), request.match_info["stream"]
        try:
            have, new = self.logs.append(attempt, node, stream, _count(request, "at", 0), await request.read())
        except Gap as gap:
            return web.json_response({"have": gap.have})
        if new:
            self.streams.say(
                Event(
                    attempt,
                    0,
                    self._clock(),
                    Kind.LOG,
                    {"node": node, "stream": stream, "offset": have - len(new[-4000:]), "text": new[-4000:].decode(errors="replace")},
                )
            )
        return web.json_response({"have": have})

    # ---- drivers

    async def get_orders(self, request: web.Request) -> web.StreamResponse:
        """What the driver should be doing, said whenever it changes and again on every connection."""
        session, start = request.match_info["session"], _count(request, "start", 1)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        stream = self.streams.open()
        said: tuple[str, str, int] | None = None
        try:
            while not self.over.is_set():
                if self.brain.start_of(session) != start:
                    break  # no longer this session's process
                wanted = self.brain.wanted_order(session)
                if wanted and wanted != said:
                    await response.write(json.dumps({"order": wanted[0], "cell_id": wanted[1], "n": wanted[2]}).encode() + b"\n")
                    said = wanted
                if not await stream.wait(PULSE_S):
                    await response.write(json.dumps({"order": Order.PULSE}).encode() + b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.streams.close(stream)
        return response

    async def post_driver_events(self, request: web.Request) -> web.Response:
        body = await request.json()
        mine = self.brain.driver_events(request.match_info["session"], int(body["start"]), int(body["batch"]), body["events"])
        self.streams.wake()
        return web.json_response({}) if mine else _error(410, "another process serves this session now", "end")

    async def get_request(self, request: web.Request) -> web.Response:
        wanted = self.brain.requests.get(request.match_info["cell"])
        return web.json_response(wanted.to_json()) if wanted else _error(404, "no such cell run", "end")

    async def get_file(self, request: web.Request) -> web.StreamResponse:
        path = self._file(request.match_info["sha"])
        return web.FileResponse(path) if path.exists() else _error(404, "no such file", "upload it first")

    async def put_value(self, request: web.Request) -> web.Response:
        await _receive(request, self.run.values / request.match_info["cell"])
        return web.json_response({})

    def _file(self, sha: str) -> Path:
        return self.run.files / sha

    # ---- the end

    async def live(self) -> None:
        """Tick until the brain has ended and every node has said goodbye, then say END."""
        stop_file = asyncio.create_task(self._watch_stop_file())
        try:
            while self.brain.end is None:
                self.brain.tick()
                await self.streams.changed(TICK_S)
        finally:
            stop_file.cancel()
        self.streams.wake()
        deadline = self._clock() + GOODBYE_S
        while not self.brain.all_left and self._clock() < deadline:
            await self.streams.changed(TICK_S)
        self.emit(Kind.END, self.brain.end.to_json())
        self.over.set()
        self.streams.wake()

    async def _watch_stop_file(self) -> None:
        """In a thread: storage may hang, the hub must not."""
        while not await asyncio.to_thread(self.run.stop.exists):
            await asyncio.sleep(TICK_S)
        self.brain.finish(Ending.STOPPED, "stopped by its user")
        self.streams.wake()


async def _receive(request: web.Request, path: Path, wanted: str | None = None) -> bool:
    """Stream the body into a private file, whole or not at all; False, and no file, where its sha256 is not ``wanted``."""
    digest = hashlib.sha256()
    part = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        part.touch(mode=0o600, exist_ok=False)
        with part.open("wb") as file:
            async for chunk in request.content.iter_chunked(1 << 20):
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        if wanted not in (None, digest.hexdigest()):
            return False
        part.replace(path)
        return True
    finally:
        part.unlink(missing_ok=True)


def _count(request: web.Request, name: str, otherwise: int) -> int:
    """A number of the query that must not be negative."""
    text = request.query.get(name, str(otherwise))
    if not text.isascii() or not text.isdigit():
        raise web.HTTPBadRequest(
            text=json.dumps({"error": f"{name}={text!r} is not a number", "hint": "0 or more"}), content_type="application/json"
        )
    return int(text)


def _cursor(request: web.Request) -> Cursor:
    try:
        return Cursor.parse(request.query.get("since", "0.0"))
    except ValueError:
        raise web.HTTPBadRequest(
            text=json.dumps({"error": "since is not ATTEMPT.SEQ", "hint": "0.0 is the beginning"}), content_type="application/json"
        ) from None


def _error(status: int, what: str, hint: str) -> web.Response:
    return web.json_response({"error": what, "hint": hint}, status=status)


async def serve(run: RunDir, bind: str) -> int:
    raw = read_json(run.submission)
    if raw is None:
        print(f"no submission in {run.path}", file=sys.stderr)
        return 2
    submission = Submission.from_json(raw)
    try:
        scratch = private_tmp(hub_tmp(submission.uid))
    except TempDirRefused as error:
        gpus = submission.nodes * submission.gpus_per_node
        write_json(run.end, End(Ending.FAILED, error.what, time.time(), evidence=error.evidence, gpus=gpus).to_json())
        return 1
    hub = Hub(run, submission, run.hub_token.read_text().strip(), steady_clock(), scratch)
    mirror = Mirror([(hub.journal.folder, run.journal), (hub.logs.folder, run.logs)])
    mirror.start()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, hub.brain.finish, Ending.STOPPED, "its scheduler ended it")
    watch_lifeline(lambda: hub.brain.finish(Ending.FAILED, "its supervisor was killed"))

    runner = web.AppRunner(hub.application(), access_log=None, handle_signals=False, shutdown_timeout=LINGER_S)
    await runner.setup()
    listening = socket.create_server((bind, 0), backlog=1024)
    site = web.SockSite(runner, listening, ssl_context=serving_context(run.hub_cert, run.hub_key))
    await site.start()
    host, port = listening.getsockname()[:2]
    hub.publish((host, port))
    print(f"hub of {submission.name} listens on {host}:{port}", flush=True)
    await hub.live()
    await asyncio.to_thread(mirror.finish)
    end = hub.brain.end
    assert end is not None
    write_json(run.end, end.to_json())
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await hub.streams.all_closed()
    await runner.cleanup()
    shutil.rmtree(scratch, ignore_errors=True)
    print(f"hub of {submission.name} ends: {end.cause}", flush=True)
    return 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hub", allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--bind", default="127.0.0.1")
    options = parser.parse_args(argv)
    os.umask(0o077)
    return asyncio.run(serve(RunDir(options.run), options.bind))

"""The hub's driver routes and nothing else: what a driver process is tested against."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from jupyter_aicluster import payload
from jupyter_aicluster.protocol import CellPhase, CellRequest, Submission
from jupyter_aicluster.rundir import RunDir, write_json


class DriverHub:
    """Starts one driver, gives it cells and records what it says. ``fail_posts``: answer so many event posts with 503 after taking them."""

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str] | None = None,
        fail_posts: int = 0,
        gpus: int = 1,
        cwd: Path | None = None,
        rank: int | None = None,
    ) -> None:
        self.run = RunDir(folder / "run")
        self.run.create()
        self.run.hub_token.write_text("secret")
        submission = Submission(uid="u", name="fox", backend="local", spec={"gpus": gpus}, nodes=1, gpus_per_node=gpus, time_s=60)
        write_json(self.run.submission, submission.to_json())
        self.fail_posts = fail_posts
        self.put_status = 200
        self.events: list[dict[str, Any]] = []
        self.values: dict[str, bytes] = {}
        self.log = folder / "driver.log"
        self._env = dict(env or {})
        self._rank = rank
        self._cwd = cwd or folder
        self._requests: dict[str, CellRequest] = {}
        self._orders: list[dict[str, str]] = []
        self._batch = 0
        self._changed = threading.Condition()
        self._url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        listening = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(listening),))
        self._thread.start()
        assert listening.wait(10)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "AICLUSTER_"))}
        command = [
            sys.executable,
            "-P",
            "-m",
            "jupyter_aicluster.agent.driver",
            "--run",
            str(self.run.path),
            "--session",
            "s1",
            "--start",
            "3",
            *(() if self._rank is None else ("--rank", str(self._rank))),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=env | {"AICLUSTER_HUB": self._url, "AICLUSTER_SCRATCH": str(self.run.path)} | self._env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def start(self, code: str, inputs: Mapping[str, Any] | None = None, outputs: tuple[str, ...] = (), **more: Any) -> str:
        """Order a cell; its id."""
        cell_id = f"c{len(self._requests) + 1}"
        sha = None
        if inputs is not None:
            file = io.BytesIO()
            sha = payload.pack(inputs, file).sha256
            (self.run.files / sha).write_bytes(file.getvalue())
        request = CellRequest(cell_id, "s1", code, f"<{cell_id}>", inputs=sha, outputs=outputs, **more)
        self._requests[cell_id] = request
        self._say({"order": "run", "cell_id": cell_id})
        return cell_id

    def interrupt(self, cell_id: str) -> None:
        self._say({"order": "interrupt", "cell_id": cell_id})

    def interrupted_at_once(self, code: str) -> str:
        """A cell that is interrupted before this process was told to run it; its id."""
        cell_id = f"c{len(self._requests) + 1}"
        self._requests[cell_id] = CellRequest(cell_id, "s1", code)
        self.interrupt(cell_id)
        return cell_id

    def hold(self) -> None:
        self._say({"order": "hold", "cell_id": "c0"})

    def cell(self, code: str, inputs: Mapping[str, Any] | None = None, outputs: tuple[str, ...] = (), **more: Any) -> Cell:
        """Run a cell to its end."""
        return self.finish(self.start(code, inputs, outputs, **more))

    def finish(self, cell_id: str) -> Cell:
        self.wait(lambda: any(CellPhase(report["phase"]).over for report in self._reports(cell_id)))
        return Cell(cell_id, self._reports(cell_id)[-1], [e["d"]["output"] for e in self.outputs(cell_id)], self.values.get(cell_id))

    def outputs(self, cell_id: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["k"] == "output" and event["d"]["cell_id"] == cell_id]

    def wait(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), f"{self.events[-5:]}\n{self.log.read_text()[-3000:]}"

    def _reports(self, cell_id: str) -> list[dict[str, Any]]:
        return [event["d"] for event in list(self.events) if event["k"] == "cell" and event["d"]["cell_id"] == cell_id]

    def _say(self, order: dict[str, str]) -> None:
        with self._changed:
            self._orders.append(order)

    async def _serve(self, listening: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(
            [
                web.get("/v1/drivers/s1/orders", self._get_orders),
                web.post("/v1/drivers/s1/events", self._post_events),
                web.get("/v1/cells/{cell}/request", self._get_request),
                web.get("/v1/files/{sha}", self._get_file),
                web.put("/v1/values/{cell}", self._put_value),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        listening.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _get_orders(self, request: web.Request) -> web.StreamResponse:
        assert request.query["start"] == "3"
        assert request.headers["Authorization"] == "Bearer secret"
        response = web.StreamResponse()
        await response.prepare(request)
        said = 0
        while not self._stopping.is_set():
            for order in self._orders[said:]:
                await response.write(json.dumps(order).encode() + b"\n")
                said += 1
            await asyncio.sleep(0.01)
        return response

    async def _post_events(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["start"] == 3
        with self._changed:
            if body["batch"] > self._batch:
                self._batch = body["batch"]
                self.events += body["events"]
                self._changed.notify_all()
            if self.fail_posts:
                self.fail_posts -= 1
                return web.Response(status=503)
        return web.json_response({})

    async def _get_request(self, request: web.Request) -> web.Response:
        return web.json_response(self._requests[request.match_info["cell"]].to_json())

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        path = self.run.files / request.match_info["sha"]
        return web.FileResponse(path) if path.exists() else web.Response(status=404)

    async def _put_value(self, request: web.Request) -> web.Response:
        if self.put_status != 200:
            return web.json_response({"error": "no room", "hint": ""}, status=self.put_status)
        self.values[request.match_info["cell"]] = await request.read()
        return web.json_response({})


class Cell:
    """What a finished cell has shown and sent back."""

    def __init__(self, cell_id: str, report: dict[str, Any], outputs: list[dict[str, Any]], blob: bytes | None) -> None:
        self.id, self.report, self.outputs = cell_id, report, outputs
        self.values = payload.unpack(io.BytesIO(blob), tolerant=True) if blob else {}

    @property
    def phase(self) -> str:
        return str(self.report["phase"])

    @property
    def traceback(self) -> str:
        return "\n".join(self.report["error"]["traceback"])

    def text(self, name: str = "stdout") -> str:
        return "".join(output["text"] for output in self.outputs if output["output_type"] == "stream" and output["name"] == name)

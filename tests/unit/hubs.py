"""A hub over real HTTPS in the test's own loop: the real application and brain, without nodes or Ray."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from jupyter_aicluster.agent.clock import steady_clock
from jupyter_aicluster.agent.hub import Hub
from jupyter_aicluster.protocol import PROTOCOL_HEADER, TOKEN_HEADER, VERSION, Submission
from jupyter_aicluster.rundir import RunDir, write_json, write_private
from jupyter_aicluster.tls import make_certificate, pinned_context, serving_context


def submission(**changes: Any) -> Submission:
    base = Submission(
        uid=secrets.token_hex(6), name="fox", backend="local", spec={"gpus": 2}, nodes=2, gpus_per_node=1, time_s=3600.0, simulated=True
    )
    return replace(base, **changes)


def make_run(folder: Path, wanted: Submission) -> RunDir:
    """A run folder as the client makes it."""
    run = RunDir(folder)
    run.create()
    make_certificate(run, wanted.uid)
    for token in (run.hub_token, run.ray_token):
        write_private(token, secrets.token_hex(16).encode())
    write_json(run.submission, wanted.to_json())
    return run


class Served:
    """A hub that listens, and how to talk to it."""

    def __init__(self, hub: Hub, port: int, http: aiohttp.ClientSession) -> None:
        self.hub, self.run, self.brain = hub, hub.run, hub.brain
        self.base = f"https://127.0.0.1:{port}"
        self.http = http

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """(status, JSON body)."""
        async with self.http.request(method, self.base + path, **options) as response:
            return response.status, await response.json(content_type=None)


@asynccontextmanager
async def serving(run: RunDir, wanted: Submission, scratch: Path, *, live: bool = False) -> AsyncIterator[Served]:
    """``live``: its clock ticks, so that it ends when its brain does."""
    hub = Hub(run, wanted, run.hub_token.read_text(), steady_clock(), scratch)
    runner = web.AppRunner(hub.application(), access_log=None, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    await web.SockSite(runner, listening, ssl_context=serving_context(run.hub_cert, run.hub_key)).start()
    hub.publish(("127.0.0.1", port))
    living = asyncio.create_task(hub.live()) if live else None
    headers = {TOKEN_HEADER: run.hub_token.read_text(), PROTOCOL_HEADER: str(VERSION)}
    connector = aiohttp.TCPConnector(ssl=pinned_context(run.hub_cert))
    try:
        async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as http:
            yield Served(hub, port, http)
    finally:
        if living:
            living.cancel()
            with suppress(asyncio.CancelledError):
                await living
        hub.over.set()
        hub.streams.wake()
        await runner.cleanup()
        run.hub.unlink()

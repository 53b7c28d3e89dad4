"""REST routes under ``aicluster/``: authenticated and authorized as all of Jupyter's own; none counts as activity.

    GET  clusters                          {now_s, clusters: [ClusterInfo]}: this user's, wherever they were made, newest first
    GET  clusters/UID/logs                 {attempt, ended, streams: [{node, stream, size}]}
    GET  clusters/UID/logs/NODE/STREAM     raw bytes from ?from= on, at most about 1 MB
    POST clusters/UID/keep                 body {seconds}
    POST clusters/UID/stop

What fails is answered with {message, evidence, hint}. All work is done in the client core's own loop, never in the server's.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from jupyter_aicluster.clusters import clusters_of
from jupyter_aicluster.errors import AIClusterError, ClusterEnded, HubUnreachable, NotFound, UsageError
from jupyter_aicluster.jupyter.config import options
from jupyter_aicluster.jupyter.overview import Overview
from jupyter_aicluster.loop import background
from jupyter_aicluster.onlooker import Onlooker

T = TypeVar("T")
RESOURCE = "aicluster"  # what an Authorizer is asked about; actions: read, write
LONGEST_KEEP_S = 7 * 86400.0
_STATUS: dict[type[AIClusterError], int] = {NotFound: 404, ClusterEnded: 409, UsageError: 400, HubUnreachable: 503}


@functools.cache
def overview() -> Overview:
    """This process's, made at first use: a server that nobody asks for clusters does nothing for them. Raises `UsageError`."""
    return Overview(clusters_of(options()))


class _Handler(APIHandler):
    auth_resource = RESOURCE

    def update_api_activity(self) -> None:
        """A sidebar that looks every few seconds must not keep an idle server alive."""

    async def answer(self, work: Callable[[Overview], Coroutine[Any, Any, T]]) -> T | None:
        """What ``work`` says; None after its error has been sent."""
        try:
            return await asyncio.wrap_future(background.start(_with_overview(work)))
        except AIClusterError as error:
            self.set_status(next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500))
            self.finish({"message": error.what, "evidence": error.evidence, "hint": error.hint})
            return None


async def _with_overview(work: Callable[[Overview], Awaitable[T]]) -> T:
    return await work(await asyncio.to_thread(overview))  # reads configuration files, makes folders


class ClustersHandler(_Handler):
    SUPPORTED_METHODS = ("GET",)

    @web.authenticated
    @authorized
    async def get(self) -> None:
        found = await self.answer(Overview.all)
        if found is not None:
            self.finish({"now_s": time.time(), "clusters": found})


class LogsHandler(_Handler):
    SUPPORTED_METHODS = ("GET",)

    @web.authenticated
    @authorized
    async def get(self, uid: str) -> None:
        found = await self.answer(lambda overview: _streams(overview.find(uid)))
        if found is not None:
            self.finish(found)


async def _streams(cluster: Onlooker) -> dict[str, Any]:
    return {"attempt": cluster.attempt, "ended": cluster.ended, "streams": list(await cluster.streams())}


class LogHandler(_Handler):
    SUPPORTED_METHODS = ("GET",)

    @web.authenticated
    @authorized
    async def get(self, uid: str, node: str, stream: str) -> None:
        start = self.get_query_argument("from", "0")
        if not start.isdecimal():
            raise web.HTTPError(400, "?from= is a number of bytes")
        data = await self.answer(lambda overview: overview.find(uid).log(int(node), stream, int(start)))
        if data is not None:
            self.finish(data, set_content_type="application/octet-stream")


class KeepHandler(_Handler):
    SUPPORTED_METHODS = ("POST",)

    @web.authenticated
    @authorized
    async def post(self, uid: str) -> None:
        body = self.get_json_body()
        seconds = body.get("seconds") if isinstance(body, dict) else None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_KEEP_S:
            raise web.HTTPError(400, f"a body like {{'seconds': 1800}}, at most {LONGEST_KEEP_S:.0f}")
        if await self.answer(lambda overview: _done(overview.find(uid).keep(float(seconds)))):
            self.finish({})


class StopHandler(_Handler):
    SUPPORTED_METHODS = ("POST",)

    @web.authenticated
    @authorized
    async def post(self, uid: str) -> None:
        if await self.answer(lambda overview: _done(overview.find(uid).stop())):
            self.set_status(202)
            self.finish({})


async def _done(work: Awaitable[None]) -> bool:
    await work
    return True


_CLUSTER = r"clusters/([0-9a-f]{4,32})"
ROUTES: tuple[tuple[str, type[_Handler]], ...] = (
    (r"clusters", ClustersHandler),
    (rf"{_CLUSTER}/logs", LogsHandler),
    (rf"{_CLUSTER}/logs/(\d{{1,6}})/([A-Za-z0-9_.-]{{1,128}})", LogHandler),
    (rf"{_CLUSTER}/keep", KeepHandler),
    (rf"{_CLUSTER}/stop", StopHandler),
)

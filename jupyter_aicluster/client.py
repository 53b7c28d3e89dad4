"""HubClient: the client's side of the hub protocol, over whatever the backend's Dialer offers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from jupyter_aicluster.backends.base import Dialer
from jupyter_aicluster.errors import ClusterEnded, HubUnreachable, NotFound, ProtocolSkew, UsageError
from jupyter_aicluster.events import Cursor, Event
from jupyter_aicluster.protocol import OBSERVER_HEADER, PROTOCOL_HEADER, PULSE_S, TOKEN_HEADER, VERSION, CellReport, CellRequest
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.tls import pinned_context

_log = logging.getLogger(__name__)
CHUNK = 1 << 20
TIMEOUT = aiohttp.ClientTimeout(total=15, sock_connect=5)
STREAM = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=3 * PULSE_S)
TRANSFER = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60)


class HubClient:
    """Use as ``async with``. Every call raises `HubUnreachable` when nothing answers, which says nothing about the cluster.

    ``observer``: only looks, so that the hub does not take it for somebody who waits for results (the lease is not renewed).
    """

    def __init__(self, dialer: Dialer, run: RunDir, *, observer: bool = False) -> None:
        self._base, self._run = dialer.base_url, run
        self._observer = {OBSERVER_HEADER: "1"} if observer else {}
        self._via = dialer.via
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            headers = {TOKEN_HEADER: self._run.hub_token.read_text().strip(), PROTOCOL_HEADER: str(VERSION), **self._observer}
            connector = aiohttp.TCPConnector(ssl=pinned_context(self._run.hub_cert))
        except OSError as error:
            raise HubUnreachable(
                "the cluster's keys cannot be read", evidence=str(error), hint=f"is {self._run.path} still there, and yours?"
            ) from error
        self._http = aiohttp.ClientSession(headers=headers, connector=connector, timeout=TIMEOUT)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._http:
            await self._http.close()

    async def cluster(self) -> dict[str, Any]:
        return await self._json("GET", "/v1/cluster")

    async def lease(self) -> dict[str, Any]:
        """Say that somebody is here."""
        return await self._json("POST", "/v1/lease")

    async def run_cell(self, request: CellRequest, payload: Path | None) -> CellReport:
        """Idempotent by cell id; uploads the inputs first, by content."""
        if request.inputs and payload is not None:
            await self._upload(request.inputs, payload)
        return CellReport.from_json(await self._json("POST", "/v1/cells", request.to_json()))

    async def cell(self, cell_id: str) -> CellReport:
        return CellReport.from_json(await self._json("GET", f"/v1/cells/{cell_id}"))

    async def interrupt(self, cell_id: str) -> None:
        await self._json("POST", f"/v1/cells/{cell_id}/interrupt")

    async def keep(self, seconds: float) -> dict[str, Any]:
        return await self._json("POST", "/v1/keep", {"seconds": seconds})

    async def reset(self, session: str) -> None:
        """Forget the variables of a session."""
        await self._json("POST", "/v1/reset", {"session": session})

    async def stop(self) -> None:
        await self._json("POST", "/v1/stop")

    async def value(self, cell_id: str, to: Path) -> None:
        """Fetch a cell run's values into a file."""
        async with self._call("GET", f"/v1/values/{cell_id}", timeout=TRANSFER) as response:
            with to.open("wb") as file:
                async for chunk in response.content.iter_chunked(CHUNK):
                    file.write(chunk)

    async def streams(self) -> list[dict[str, Any]]:
        """[{node, stream, size}] of all log streams."""
        async with self._call("GET", "/v1/logs") as response:
            found: list[dict[str, Any]] = await response.json()
            return found

    async def log(self, node: int, stream: str, start: int = 0) -> bytes:
        async with self._call("GET", f"/v1/logs/{node}/{stream}?from={start}") as response:
            return await response.read()

    async def events(self, since: Cursor) -> AsyncIterator[Event]:
        """From just after ``since`` until the stream ends (the cluster's end, or a cut: resume from the last event)."""
        async with self._call("GET", f"/v1/events?since={since}", timeout=STREAM) as response:
            begun: list[bytes] = []  # of a line, which may be megabytes long
            try:
                async for chunk in response.content.iter_any():
                    first, *rest = chunk.split(b"\n")
                    begun.append(first)
                    if not rest:
                        continue
                    lines = [b"".join(begun), *rest[:-1]]
                    begun = [rest[-1]]
                    for line in lines:
                        try:
                            event = Event.from_line(line)
                        except ValueError as error:  # a proxy's words, perhaps; the rest may still be heard
                            _log.warning("skipped a line of the event stream: %s", error)
                            continue
                        yield event
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                raise HubUnreachable("the hub's event stream was cut", evidence=str(error), hint="it is resumed by itself") from error

    async def _upload(self, sha256: str, payload: Path) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            with payload.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK):
                    yield chunk

        async with self._call("POST", f"/v1/files/{sha256}", data=chunks(), timeout=TRANSFER):
            pass

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async with self._call(method, path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    @asynccontextmanager
    async def _call(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._http is not None, "use as `async with`"
        try:
            async with self._http.request(method, self._base + path, **options) as response:
                if response.status >= 400:
                    await self._refused(response)
                yield response
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise HubUnreachable(
                f"the cluster's hub does not answer ({self._via} {self._base})",
                evidence=f"{type(error).__name__}: {error}",
                hint="it is tried again by itself; `%gpujob list` shows what the scheduler says",
            ) from error

    async def _refused(self, response: aiohttp.ClientResponse) -> None:
        if response.content_type != "application/json":  # not our hub
            text = (await response.text())[:300]
            raise HubUnreachable("not the hub answered, perhaps a proxy", evidence=text, hint="add the hub's host to no_proxy")
        said = await response.json()
        what, hint = str(said.get("error", response.reason)), str(said.get("hint", ""))
        match response.status:
            case 404:
                raise NotFound(what, hint=hint)
            case 426:
                raise ProtocolSkew(what, hint=hint)
            case 409:
                raise ClusterEnded(what, hint=hint)
            case 401 | 500 | 507:
                raise HubUnreachable(what, hint=hint)
        raise UsageError(what, hint=hint)

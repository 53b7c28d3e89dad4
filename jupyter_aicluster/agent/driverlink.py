"""The driver's line to its hub: orders in, events out, inputs and values as files. Runs in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from jupyter_aicluster.protocol import PROTOCOL_HEADER, PULSE_S, VERSION

_BATCH_BYTES = 1_000_000
_CHUNK_BYTES = 1 << 20
_RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0)
_REFUSED = frozenset({400, 404, 405, 409, 410, 413, 422, 507})  # asking again will not help

_T = TypeVar("_T")
_log = logging.getLogger(__name__)  # not sys.stderr: that belongs to the cells


class RefusedError(Exception):
    """Asking again will not help: the hub's answer was final, or there is no room here."""


class DriverLink:
    """Thread-safe. Every call is repeated until the hub has answered: the driver is ended by others when the hub is gone."""

    def __init__(self, url: str, session: str, start: int, token: str, tls: ssl.SSLContext | None = None) -> None:
        self._url = url.rstrip("/")
        self._path = f"/v1/drivers/{session}"
        self._start = start  # which process of the session this is; with the batch number it names a batch for ever
        self._headers = {"Authorization": f"Bearer {token}", PROTOCOL_HEADER: str(VERSION)}
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._events: asyncio.Queue[str] = asyncio.Queue()
        self._unsent = 0
        self._sent = threading.Condition()

    def start(self, on_order: Callable[[Mapping[str, Any]], None]) -> None:
        """``on_order`` is called in the link's thread with every line of the order stream."""
        threading.Thread(target=self._loop.run_until_complete, args=(self._main(on_order),), name="hub-link", daemon=True).start()

    def post(self, kind: str, data: Mapping[str, Any]) -> None:
        """Queue an event. Events arrive in order, each once."""
        line = json.dumps({"k": str(kind), "d": data}, default=str)
        with self._sent:
            self._unsent += 1
        self._loop.call_soon_threadsafe(self._events.put_nowait, line)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the hub has accepted every event posted so far."""
        with self._sent:
            return self._sent.wait_for(lambda: not self._unsent, timeout_s)

    def request(self, cell_id: str) -> dict[str, Any]:
        """The cell's `CellRequest` as JSON. Raises `RefusedError` where the hub does not know it."""

        async def ask(http: aiohttp.ClientSession) -> dict[str, Any]:
            async with http.get(f"{self._url}/v1/cells/{cell_id}/request") as answer:
                _check(answer)
                return dict(await answer.json())

        return self._call(ask)

    def download(self, sha256: str, to: Path) -> None:
        """Fetch an uploaded file. Raises `RefusedError` where the hub does not have it."""

        async def fetch(http: aiohttp.ClientSession) -> None:
            async with http.get(f"{self._url}/v1/files/{sha256}") as answer:
                _check(answer)
                with to.open("wb") as file:
                    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                        with _room():
                            file.write(chunk)
                            file.flush()

        self._call(fetch)

    def upload_values(self, cell_id: str, source: Path) -> None:
        async def send(http: aiohttp.ClientSession) -> None:
            with source.open("rb") as file:
                async with http.put(f"{self._url}/v1/values/{cell_id}", data=file) as answer:
                    _check(answer)

        self._call(send)

    def _call(self, action: Callable[[aiohttp.ClientSession], Coroutine[Any, Any, _T]]) -> _T:
        async def run() -> _T:
            return await _persist(lambda: action(self._http))

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def _main(self, on_order: Callable[[Mapping[str, Any]], None]) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=2.5 * PULSE_S)
        connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector) as self._http:
            await asyncio.gather(self._read_orders(on_order), self._post_events())

    async def _read_orders(self, on_order: Callable[[Mapping[str, Any]], None]) -> None:
        tries = 0
        while True:
            try:
                async with self._http.get(f"{self._url}{self._path}/orders", params={"start": self._start}) as answer:
                    answer.raise_for_status()
                    async for line in answer.content:
                        tries = 0
                        if line.strip():
                            on_order(json.loads(line))
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                _log.warning("order stream: %r; connecting again", error)
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1

    async def _post_events(self) -> None:
        batch = 0
        while True:
            lines = [await self._events.get()]
            size = len(lines[0])
            while size < _BATCH_BYTES and not self._events.empty():
                lines.append(self._events.get_nowait())
                size += len(lines[-1])
            batch += 1
            body = f'{{"start":{self._start},"batch":{batch},"events":[{",".join(lines)}]}}'.encode()
            try:
                await _persist(partial(self._post, body))
            except RefusedError as error:
                _log.error("%d events dropped: %s", len(lines), error)
            with self._sent:
                self._unsent -= len(lines)
                self._sent.notify_all()

    async def _post(self, body: bytes) -> None:
        async with self._http.post(f"{self._url}{self._path}/events", data=body, headers={"Content-Type": "application/json"}) as answer:
            _check(answer)


@contextmanager
def _room() -> Iterator[None]:
    """A full disk here is not the hub's silence."""
    try:
        yield
    except OSError as error:
        raise RefusedError(str(error)) from error


def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status in _REFUSED:
        raise RefusedError(f"the hub answered {answer.status} to {answer.method} {answer.url.path}")
    answer.raise_for_status()


async def _persist(action: Callable[[], Awaitable[_T]]) -> _T:
    """Try until it works or is refused."""
    tries = 0
    while True:
        try:
            return await action()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.warning("hub: %r; trying again", error)
        await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
        tries += 1

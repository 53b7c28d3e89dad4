"""A node program's link to its hub: one pinned HTTPS session that finds the hub again wherever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from jupyter_aicluster.protocol import PROTOCOL_HEADER, VERSION
from jupyter_aicluster.rundir import RunDir, read_json
from jupyter_aicluster.tls import pinned_context


class NoHub(ConnectionError):
    """No hub answers just now. Says nothing about whether it lives."""


class HubLink:
    """Calls raise `NoHub` for anything that a later try may mend."""

    def __init__(self, run: RunDir, timeout_s: float = 5.0) -> None:
        self._run = run
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._base = ""  # where the hub was last found; storage is asked again only when it is no longer there

    @property
    def known(self) -> bool:
        """Whether a hub has answered at last."""
        return bool(self._base)

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._run.hub_token.read_text().strip()}", PROTOCOL_HEADER: str(VERSION)}
        connector = aiohttp.TCPConnector(ssl=pinned_context(self._run.hub_cert))
        # trust_env stays off: a proxy of the login shell must not stand between a node and its hub.
        self._session = aiohttp.ClientSession(headers=headers, connector=connector, timeout=self._timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session:
            await self._session.close()

    async def post(self, path: str, body: Mapping[str, Any] | bytes) -> dict[str, Any]:
        known, self._base = self._base, ""
        base = known or await self._find()
        try:
            answer = await self._post(base + path, body)
        except NoHub:
            if not known or (base := await self._find()) == known:
                raise
            answer = await self._post(base + path, body)
        self._base = base
        return answer

    async def _find(self) -> str:
        found = await asyncio.to_thread(read_json, self._run.hub)  # storage may hang; the node must go on
        if found is None:
            raise NoHub("the hub has not said where it listens")
        return f"https://{found['host']}:{found['port']}"

    async def _post(self, url: str, body: Mapping[str, Any] | bytes) -> dict[str, Any]:
        assert self._session is not None
        call = self._session.post(url, data=body) if isinstance(body, bytes) else self._session.post(url, json=body)
        try:
            async with call as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoHub(str(error) or type(error).__name__) from error

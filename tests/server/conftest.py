"""A real Jupyter server with our extension, over records in a home of its own and the scripted fake backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_jupyter.jupyter_core import (  # noqa: F401  # fixtures that those below ask for
    echo_kernel_spec,
    jp_config_dir,
    jp_data_dir,
    jp_env_config_path,
    jp_env_jupyter_path,
    jp_environ,
    jp_home_dir,
    jp_kernel_dir,
    jp_runtime_dir,
    jp_system_config_path,
    jp_system_jupyter_path,
)
from pytest_jupyter.jupyter_server import (  # noqa: F401
    jp_argv,
    jp_auth_header,
    jp_base_url,
    jp_configurable_serverapp,
    jp_fetch,
    jp_http_port,
    jp_logging_stream,
    jp_nbconvert_templates,
    jp_root_dir,
    jp_serverapp,
    jp_web_app,
)
from pytest_jupyter.pytest_tornasync import http_server, http_server_client, http_server_port  # noqa: F401
from tornado.httpclient import HTTPClientError

from jupyter_aicluster.clusters import Clusters
from jupyter_aicluster.jupyter import handlers
from jupyter_aicluster.jupyter.overview import Overview
from jupyter_aicluster.loop import background
from jupyter_aicluster.options import Options
from jupyter_aicluster.testing.fake import FakeBackend, FakeScheduler

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def jp_asyncio_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The server's; tests are plain functions that let it run while they ask. Not autouse, as pytest-jupyter's own is."""
    loop = asyncio.SelectorEventLoop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.run_until_complete(asyncio.sleep(0))
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {"ServerApp": {"jpserver_extensions": {"jupyter_aicluster.jupyter.extension": True, "jupyter_server_terminals": False}}}


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(total=8)


@pytest.fixture
def clusters(tmp_path: Path, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    """What the server sees. Runs in the background loop, as there."""
    made = Clusters(Options(home=tmp_path / "aicluster"), {"fake": FakeBackend(scheduler)})
    overview = Overview(made)
    monkeypatch.setattr(handlers, "overview", lambda: overview)
    yield made

    async def rest() -> None:
        overview.rest()

    background.run(rest())


@pytest.fixture
def ask(clusters: Clusters, jp_fetch: Any, jp_asyncio_loop: asyncio.AbstractEventLoop) -> Ask:  # noqa: F811
    """(status, body) of a request below ``aicluster/``; the body as JSON where it is."""

    def ask(method: str, path: str, body: object = None, **options: Any) -> tuple[int, Any]:
        data = json.dumps(body) if method == "POST" else None
        try:
            response = jp_asyncio_loop.run_until_complete(jp_fetch("aicluster", *path.split("/"), method=method, body=data, **options))
        except HTTPClientError as error:
            response = error.response
        assert response is not None
        is_json = response.headers["Content-Type"].startswith("application/json")
        return response.code, json.loads(response.body) if is_json else response.body

    return ask

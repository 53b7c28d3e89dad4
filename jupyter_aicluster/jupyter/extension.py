"""The Jupyter server extension."""

from __future__ import annotations

from typing import Any

from jupyter_server.utils import url_path_join

from jupyter_aicluster.jupyter.handlers import ROUTES


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_aicluster.jupyter.extension"}]


def _load_jupyter_server_extension(server: Any) -> None:
    base = url_path_join(server.web_app.settings["base_url"], "aicluster")
    server.web_app.add_handlers(".*$", [(f"{base}/{route}", handler) for route, handler in ROUTES])

"""REST routes under ``aicluster/``: authenticated and authorized as all of Jupyter's own; none counts as activity."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from jupyter_aicluster.jupyter.config import options
from jupyter_aicluster.store import Record, Store


def shown(record: Record) -> dict[str, Any]:
    """What the browser may know of a cluster: no addresses, no tokens, no environment."""
    status = record.status
    return {
        "uid": record.handle.uid,
        "name": record.handle.name,
        "backend": record.handle.backend,
        "gpus": record.spec.gpus,
        "nodes": record.nodes,
        "simulated": record.simulated,
        "state": str(status.state),
        "attempt": status.attempt,
        "created_s": record.created_s,
        "reason": status.end.cause if status.end else status.observation.reason,
        "ending": str(status.end.ending) if status.end else None,
    }


class ClustersHandler(APIHandler):
    """GET: this user's clusters, wherever they were made, newest first, from the records."""

    auth_resource = "aicluster"
    SUPPORTED_METHODS = ("GET",)

    @web.authenticated
    @authorized
    async def get(self) -> None:
        records = await asyncio.to_thread(Store(options().home).all)
        self.finish({"clusters": [shown(record) for record in records]})

    def update_api_activity(self) -> None:
        """A sidebar that looks every few seconds must not keep an idle server alive."""

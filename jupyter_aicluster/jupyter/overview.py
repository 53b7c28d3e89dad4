"""What the sidebar shows: all clusters of this user, whichever process made them. Runs in the background loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_aicluster.clusters import Clusters
from jupyter_aicluster.errors import AIClusterError, NotFound
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.onlooker import Onlooker
from jupyter_aicluster.protocol import CellPhase, RayState
from jupyter_aicluster.state import State
from jupyter_aicluster.store import Record

INTEREST_S = 30.0  # the schedulers are polled for so long after somebody asked last
_WITH_HUB = frozenset({State.STARTING, State.READY, State.ENDING})


class Overview:
    """One per server process and home. While somebody looks, the reconciler polls the schedulers at its own pace: requests never do."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._watched: dict[Handle, Callable[[], None]] = {}
        self._rest: asyncio.TimerHandle | None = None

    async def all(self) -> list[dict[str, Any]]:
        """`shown` of every cluster, newest first. A hub that does not answer takes nothing from the others."""
        records = await asyncio.to_thread(self._clusters.store.all)
        await self._watch(records)
        return list(await asyncio.gather(*(self._one(record) for record in records)))

    def find(self, uid: str) -> Onlooker:
        """Raises `NotFound`."""
        record = self._clusters.store.get(uid)
        if record is None:
            raise NotFound("there is no such cluster any more", hint="only the newest ended clusters are remembered")
        return Onlooker(self._clusters, record)

    def rest(self) -> None:
        """Nobody looks any more: leave the schedulers alone."""
        for stop in self._watched.values():
            stop()
        self._watched.clear()
        if self._rest:
            self._rest.cancel()

    async def _watch(self, records: list[Record]) -> None:
        living = {record.handle for record in records if not record.status.ended}
        for handle in self._watched.keys() - living:
            self._watched.pop(handle)()
        for handle in living - self._watched.keys():
            self._watched[handle] = self._clusters.reconciler.watch(handle, _nothing)
        if self._rest:
            self._rest.cancel()
        self._rest = asyncio.get_running_loop().call_later(INTEREST_S, self.rest)

    async def _one(self, record: Record) -> dict[str, Any]:
        seen: Mapping[str, Any] = {}
        notice = ""
        if record.status.state in _WITH_HUB:
            try:
                seen = await Onlooker(self._clusters, record).look()
                record = self._clusters.store.get(record.handle.uid) or record
            except AIClusterError as error:
                notice = error.what if record.status.state is State.READY else ""
        return shown(record, seen, time.time()) | {"notice": notice}


def _nothing(record: Record) -> None:
    """The record itself is what changes."""


def shown(record: Record, seen: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """``ClusterInfo`` of labextension/src/sidebar/model.ts; ``seen``: the hub's view, if it has one. Pure.

    What the browser may know of a cluster: no addresses, no tokens, no environment.
    """
    model = _model(record, seen, now_s)
    card = model.to_json(now_s)
    status = record.status
    coming = sorted((at_s, what) for what, at_s in model.deadlines.items())
    return {
        "uid": record.handle.uid,
        "ended_s": status.end.ended_s if status.end else None,
        "created_s": record.created_s,
        "nodes": record.nodes,
        "simulated": record.simulated,
        "time_left": {"what": coming[0][1], "at_s": coming[0][0]} if coming else None,
        **{key: card[key] for key in ("name", "backend", "gpus", "state", "tone", "attempt", "sentence", "since_s", "error")},
        **{key: card[key] for key in ("can_keep", "can_stop")},
    }


def _model(record: Record, seen: Mapping[str, Any], now_s: float) -> CardModel:
    """The card's own model, told what the hub's view says: so that card and sidebar use the same words."""
    reports = list((seen.get("cells") or {}).values())
    active = [report for report in reports if report["phase"] in (CellPhase.RUNNING, CellPhase.WAITING)]
    model = CardModel(
        name=record.handle.name, backend=record.handle.backend, gpus=record.spec.gpus, asked_s=record.created_s, status=record.status
    )
    model.joined_s = seen.get("joined_s")

    def tell(kind: Kind, data: dict[str, Any]) -> None:
        model.fold(Event(int(seen.get("attempt", 1)), 0, record.created_s, kind, data))

    nodes = dict(seen.get("nodes") or {})
    for number, node in nodes.items():
        tell(Kind.NODE, {"node": int(number), "host": node["host"], "state": "connected", "gpus": node["gpus"]})
    if record.simulated and not nodes:
        tell(Kind.NODE, {"node": 0, "gpus": [{"index": "0", "simulated": True}]})
    if record.status.state is State.STARTING and seen:
        joined = sum(node["ray"] == RayState.UP for node in nodes.values())
        gate, have = ("joined", joined) if len(nodes) >= record.nodes else ("connected", len(nodes))
        tell(Kind.GATE, {"gate": gate, "have": have, "want": record.nodes})
    for report in (active or reports)[-1:]:
        tell(Kind.CELL, dict(report))
    tell(Kind.DEADLINE, {"deadlines": _told(seen, now_s)})
    return model


def _told(seen: Mapping[str, Any], now_s: float) -> dict[str, float]:
    """A client that is there renews the lease all the time: it is worth a word only when half of it is over."""
    deadlines: dict[str, float] = dict(seen.get("deadlines") or {})
    lease_s = seen.get("lease_s")
    if "lease" in deadlines and (lease_s is None or deadlines["lease"] - now_s > lease_s / 2):
        del deadlines["lease"]
    return deadlines

"""A node program's link: the hub is found again wherever it is, and silence is one exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_aicluster.agent.link import HubLink, NoHub
from jupyter_aicluster.protocol import Beat, Orders
from jupyter_aicluster.rundir import write_json
from tests.unit.hubs import make_run, serving, submission


async def test_beats_and_logs_reach_whichever_hub_there_is(tmp_path: Path) -> None:
    wanted = submission()
    run = make_run(tmp_path / "run", wanted)
    async with HubLink(run) as link:
        with pytest.raises(NoHub, match="not said where it listens"):
            await link.post("/v1/nodes/0/beat", Beat(0, "b", 1).to_json())
        for life in ("first", "second"):
            async with serving(run, wanted, tmp_path / life) as hub:
                assert Orders.from_json(await link.post("/v1/nodes/0/beat", Beat(0, "b", 1).to_json())) == Orders(1, ray=True, drivers={})
                assert await link.post("/v1/nodes/0/logs/ray?attempt=1&at=0", b"\x00text") == {"have": 5}
                assert hub.hub.logs.read(1, 0, "ray") == b"\x00text"


async def test_a_dead_hub_a_foreign_one_and_a_refusal_are_no_hub(tmp_path: Path) -> None:
    wanted = submission()
    run, other = make_run(tmp_path / "run", wanted), make_run(tmp_path / "other", wanted)
    async with HubLink(run, timeout_s=2.0) as link:
        async with serving(other, wanted, tmp_path / "scratch") as hub:
            port = int(hub.base.rpartition(":")[2])
            write_json(run.hub, {"host": "127.0.0.1", "port": port})
            with pytest.raises(NoHub, match="certificate"):
                await link.post("/v1/nodes/0/beat", Beat(0, "b", 1).to_json())
        with pytest.raises(NoHub):
            await link.post("/v1/nodes/0/beat", Beat(0, "b", 1).to_json())
        async with serving(run, wanted, tmp_path / "own"):
            with pytest.raises(NoHub, match="404"):
                await link.post("/v1/no/such/route", {})


async def test_a_proxy_of_the_shell_does_not_stand_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    wanted = submission()
    run = make_run(tmp_path / "run", wanted)
    async with serving(run, wanted, tmp_path / "scratch"), HubLink(run) as link:
        assert (await link.post("/v1/nodes/0/beat", Beat(0, "b", 1).to_json()))["attempt"] == 1

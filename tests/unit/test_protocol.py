"""Messages between the programs: they survive JSON, and peers of another version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_aicluster.protocol import (
    BEAT_S,
    FENCE_S,
    SILENT_S,
    Beat,
    CellPhase,
    CellReport,
    CellRequest,
    GpuInfo,
    GpuSample,
    Message,
    Orders,
    Submission,
    is_id,
)

MESSAGES: list[Message] = [
    CellRequest("c1", "main", "x = 1", outputs=("x", "y"), inputs="ab", after_success_s=5.0),
    CellReport("c1", CellPhase.FAILED, 2, "In [7]", 1.0, 2.0, ("x",), 9, {"ename": "ValueError", "traceback": ["a"]}, "why"),
    GpuInfo("GPU-8932f937", "NVIDIA H100", 80 << 30),
    GpuSample("0", None, 5, None, 40.0, True),
    Beat(1, "b00t", 2, host="n1", gpus=({"index": "0", "name": "x"},), drivers={"main": {"state": "exited", "code": 3, "start": 1}}),
    Orders(2, True, "10.0.0.1:6379", {"main": 3}),
    Submission("0123456789ab", "fox", "local", {"gpus": 8}, 2, 4, 3600.0, cell={"cell_id": "c1"}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_json_and_newer_peers(message: Message) -> None:
    wire: dict[str, Any] = json.loads(json.dumps(message.to_json()))
    again = type(message).from_json(wire | {"from_a_newer_version": [1]})
    assert json.dumps(again.to_json()) == json.dumps(message.to_json())


def test_what_an_older_peer_leaves_out_takes_its_default() -> None:
    assert Beat.from_json({"node": 1, "boot": "b", "attempt": 1}) == Beat(1, "b", 1)
    assert CellRequest.from_json({"cell_id": "c", "session": "s", "code": ""}).outputs == ()


@pytest.mark.parametrize("text", ["main", "cell-0a1b", "worker-12.out", "A_b.c-9", "x" * 128, "...", ".hidden"])
def test_names_safe_as_file_and_in_a_url(text: str) -> None:
    assert is_id(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "../x", "a b", "a\n", "\n", "é", "a%2f", "$(x)", "x" * 129, "a\0"])
def test_names_that_are_not(text: str) -> None:
    assert not is_id(text)


def test_phases_that_are_over() -> None:
    assert {phase for phase in CellPhase if not phase.over} == {CellPhase.WAITING, CellPhase.RUNNING}


def test_an_eight_second_cut_survives_and_a_node_is_lost_before_it_fences_itself() -> None:
    assert 8 + 2 * BEAT_S < SILENT_S < FENCE_S

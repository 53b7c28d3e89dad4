"""What the card says at each point of a cluster's life."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.logtail import LOG_BYTES, LOG_LINES
from jupyter_aicluster.state import Observation, State, Word

T = 1_700_000_000.0


def model(**more: Any) -> CardModel:
    return CardModel(name="fox", backend="local", gpus=4, asked_s=T, cell_id="c1", names_sent=("x",), names_expected=("y",), **more)


def event(_kind: str, _at: float = 0.0, attempt: int = 1, **data: Any) -> Event:
    return Event(attempt, 1, T + _at, _kind, data | {"attempt": attempt})


def gpu(index: str) -> dict[str, Any]:
    return {"index": index, "name": "simulated GPU", "mem_total_bytes": 2**34, "simulated": True}


def sample(index: str, **values: Any) -> dict[str, Any]:
    return {"index": index, "util_percent": None, "mem_used_bytes": None, "power_w": None, "temp_c": None, "lost": False} | values


def joined() -> CardModel:
    card = model()
    for change in (
        Observation(Word.GRANTED),
        event(Kind.NODE, node=1, host="b", state="joined", gpus=[gpu("2"), gpu("3")]),
        event(Kind.NODE, node=0, host="a", state="joined", gpus=[gpu("0"), gpu("1")]),
        event(Kind.GATE, gate="connected", have=2, want=2, missing=[]),
        event(Kind.GATE, gate="joined", have=2, want=2, missing=[]),
        event(Kind.STATE, _at=10, state="ready"),
    ):
        card.fold(change)
    return card


def running() -> CardModel:
    card = joined()
    card.fold(event(Kind.CELL, cell_id="c1", phase="running", started_s=T + 12))
    card.fold(event(Kind.DEADLINE, deadlines={"time": T + 3610}))
    return card


@pytest.mark.parametrize(("per", "ranks", "says"), [("gpu", 4, "once per GPU, 4 ranks"), ("node", 1, "once per node, 1 rank")])
def test_a_cell_of_many_ranks_says_so(per: str, ranks: int, says: str) -> None:
    card = joined()
    card.fold(event(Kind.CELL, cell_id="c1", phase="running", started_s=T + 12, per=per, ranks=ranks))
    assert card.sentence(T) == f"Running {says}"
    card.fold(event(Kind.LOG, node=1, stream="rank-3-2", offset=0, text="step 1\n"))
    assert card.log.lines()[-1] == {"node": 1, "writer": "rank 3", "text": "step 1"}


def test_waiting_says_the_reason_the_place_and_whether_one_may_leave() -> None:
    card = model()
    assert card.sentence(T) == "Asking for 4 GPUs"
    assert card.fold(Observation(Word.QUEUED, reason="Waiting for 4 GPUs: 2 of 16 are free; owl holds 14", position=3, queue_length=7))
    assert card.sentence(T) == "Waiting for 4 GPUs: 2 of 16 are free; owl holds 14 · 3rd of 7"
    shown = card.to_json(T + 5)
    assert (shown["state"], shown["tone"], shown["since_s"], shown["limit_s"]) == ("queued", "wait", T, None)
    assert (shown["can_interrupt"], shown["can_keep"], shown["can_stop"]) == (True, False, True)
    assert shown["safe_to_close"] == "Safe to close this notebook: %gpujob attach fox brings it back"
    card.inputs_here = "40 MB of inputs"
    assert card.safe_to_close() == "Keep this kernel until it starts: 40 MB of inputs are still here"


def test_the_same_look_at_the_queue_is_not_news() -> None:
    card, look = model(), Observation(Word.QUEUED, reason="full", position=2, queue_length=2)
    assert card.fold(look)
    assert not card.fold(look)
    assert card.sentence(T) == "Waiting: full · 2nd of 2"


def test_gates_and_missing_nodes() -> None:
    card = model()
    card.fold(Observation(Word.GRANTED))
    assert card.sentence(T) == "Starting on 4 GPUs"
    card.fold(event(Kind.NODE, node=0, host="a", state="connected", gpus=[gpu("0"), gpu("1")]))
    card.fold(event(Kind.GATE, gate="connected", have=1, want=2, missing=[1]))
    assert card.sentence(T) == "Starting on 4 simulated GPUs · 1 of 2 nodes connected"
    assert card.to_json(T)["gates"] == {
        "connected": {"have": 1, "want": 2},
        "joined": None,
        "missing": [{"node": 1, "host": "", "why": "not heard of yet"}],
    }
    card.fold(event(Kind.GATE, gate="joined", have=1, want=2, missing=[1]))
    assert card.sentence(T).endswith("1 of 2 nodes joined")


def test_running_counts_busy_gpus_that_can_be_read() -> None:
    card = running()
    assert card.sentence(T) == "Running as one process"
    card.fold(event(Kind.GPUS, node=0, samples=[sample("0", util_percent=90.0), sample("1", util_percent=1.0)]))
    card.fold(event(Kind.GPUS, node=1, samples=[sample("2"), sample("3", util_percent=50.0)]))
    assert card.sentence(T) == "Running as one process · 2/3 GPUs busy"
    shown = card.to_json(T + 60)
    assert (shown["tone"], shown["since_s"], shown["limit_s"]) == ("run", T + 10, 3600.0)
    assert shown["countdowns"] == []  # the limit is in the clock
    assert [node["node"] for node in shown["nodes"]] == [0, 1]


def test_frame_follows_the_order_of_the_nodes_and_never_shows_zero_for_unreadable() -> None:
    card = running()
    card.fold(
        event(
            Kind.GPUS, node=1, samples=[sample("3", lost=True), sample("2", util_percent=7.0, mem_used_bytes=5, power_w=1.5, temp_c=40.0)]
        )
    )
    values = struct.unpack("<16f", card.nodes.frame())
    assert all(math.isnan(value) for value in values[:8])
    assert values[8:12] == (7.0, 5.0, 1.5, 40.0)
    assert values[12] == -1.0


def test_a_failed_cell_holds_its_gpus_with_a_countdown() -> None:
    card = running()
    error = {"ename": "NameError", "evalue": "name 'lr' is not defined\nmore", "traceback": []}
    card.fold(event(Kind.CELL, cell_id="c1", phase="failed", started_s=T + 12, ended_s=T + 54, names=["y"], error=error))
    card.fold(event(Kind.DEADLINE, deadlines={"hold": T + 654, "time": T + 3610}))
    shown = card.to_json(T + 60)
    assert shown["sentence"] == "Failed after 42 s · 4 simulated GPUs held: mend the cell and run it again"
    assert (shown["error"], shown["tone"]) == ("NameError: name 'lr' is not defined", "bad")
    assert [(line["text"], line["at_s"]) for line in shown["countdowns"]] == [("GPUs go back in", T + 654)]
    assert (shown["can_interrupt"], shown["can_keep"], shown["since_s"], shown["safe_to_close"]) == (False, True, None, "")


def test_the_end_has_a_summary_with_a_hint() -> None:
    card = running()
    card.fold(event(Kind.CELL, cell_id="c1", phase="done", started_s=T + 12, ended_s=T + 370, names=["y", "z"]))
    card.names_back = ["y", "z"]
    end: dict[str, Any] = {
        "ending": "done",
        "cause": "its job is done",
        "ended_s": T + 370,
        "joined_s": T + 10,
        "gpus": 4,
        "busy_gpu_s": 720.0,
        "used_gpus": 2,
    }
    card.fold(event(Kind.END, **end))
    assert card.to_json(T + 399)["sentence"] == "Done after 5:58 · giving the GPUs back"  # the hub said so, nobody else yet
    assert card.fold(Observation(Word.ENDED))
    shown = card.to_json(T + 400)
    assert shown["sentence"] == "Done after 5:58 · 4 simulated GPUs given back"
    assert shown["names_expected"] == ["y", "z"]
    assert shown["summary"] == {
        "ending": "done",
        "cause": "its job is done",
        "gpu_hours_held": 0.4,
        "gpu_hours_used": 0.2,
        "waited_s": 10.0,
        "ran_s": 360.0,
        "peak_mem_bytes": None,
        "hint": "2 of 4 GPUs were ever busy: --gpus 2 would have been enough",
    }
    assert not shown["can_stop"]


def test_gpus_that_stay_are_known_to_stay() -> None:
    card = running()
    card.fold(event(Kind.CELL, cell_id="c1", phase="done", started_s=T + 12, ended_s=T + 20, names=[]))
    assert not card.stays
    card.fold(event(Kind.DEADLINE, deadlines={"keep": T + 1800, "time": T + 3610}))
    assert card.stays


def test_another_cells_report_is_not_ours_and_unknown_kinds_are_ignored() -> None:
    card = running()
    card.fold(event(Kind.CELL, cell_id="other", phase="failed"))
    assert card.running
    assert not card.fold(event("telepathy", anything=1))


@pytest.mark.parametrize(
    ("checkpointed", "says"),
    [
        (True, "The cell starts again and resumes from checkpoint_dir, if its code reads it"),
        (False, "The cell starts again from the beginning: nothing was written to checkpoint_dir"),
        (None, "The cell starts again from its stored inputs"),
    ],
)
def test_a_second_attempt_says_why_and_from_where(checkpointed: bool | None, says: str) -> None:
    card = running()
    card.checkpointed = lambda cell_id: checkpointed if cell_id == "c1" else None
    card.fold(event(Kind.CELL, cell_id="c1", phase="running", started_s=T + 12, names=[]))
    card.fold(Observation(Word.GRANTED, attempt=2, reason="Ray fell on node 1"))  # a cluster tells this first
    card.fold(event(Kind.STATE, attempt=2, state="starting", cause="Ray fell on node 1"))
    card.fold(event(Kind.CELL, cell_id="c1", phase="waiting", attempt=2))
    assert card.sentence(T) == "Restarting (attempt 2) on 4 simulated GPUs"
    assert card.status.state is State.STARTING
    shown = card.to_json(T)
    assert shown["notices"] == ["Attempt 2: Ray fell on node 1; all start again together", says]
    assert shown["gates"]["joined"] is None
    assert shown["attempt"] == 2
    card.fold(event(Kind.STATE, attempt=2, state="ready"))
    card.fold(event(Kind.CELL, cell_id="c1", phase="running", attempt=2, started_s=T + 90))
    assert card.sentence(T).startswith("Running")
    assert card.to_json(T + 100)["since_s"] == T + 90


def test_a_lost_cell_says_why_in_its_sentence() -> None:
    card = running()
    cause = "Ray fell on node 1 (b)"
    card.fold(event(Kind.STATE, attempt=2, state="starting", cause=cause))
    card.fold(event(Kind.CELL, cell_id="c1", phase="lost", started_s=T + 12, ended_s=T + 54, cause=cause))
    shown = card.to_json(T + 60)
    assert shown["sentence"] == "Lost after 42 s: Ray fell on node 1 (b) · 4 simulated GPUs held"
    assert (shown["error"], shown["tone"]) == ("", "bad")


def test_log_lines_are_joined_across_chunks_and_overwritten_by_carriage_returns() -> None:
    card = model()
    for text in ("epoch 1\nepo", "ch \x1b[1m2\x1b[0m\n 10%\r 20%", "\r 30%\n", "open"):
        card.fold(event(Kind.LOG, node=0, stream="driver", offset=0, text=text))
    card.fold(event(Kind.LOG, node=1, stream="raylet", offset=0, text="up\n"))
    assert [(line["node"], line["text"]) for line in card.log.lines()] == [
        (0, "epoch 1"),
        (0, "epoch 2"),
        (0, " 30%"),
        (1, "up"),
        (0, "open"),
    ]


def test_log_lines_are_labelled_by_who_wrote_them_and_rays_control_lines_are_gone() -> None:
    card = model()
    for stream, text in (
        ("driver-nb-1f2e", ":job_id:01000000\ncell\n"),
        ("driver-nb-1f2e-2", "again\n"),
        ("worker-4711.out", ":job_id:01000000\n:task_name:burn\nburning 0\n:task_na"),
        ("worker-4711.out", "me:cool\ncooling\n:actor_name:Pump"),
        ("worker-12.err", "who?\n"),
        ("driver-x", "    [state-dump] NodeManager\n [2026-12-01 05:08:47,477 I 16934 16934] (raylet) accessor.cc:475: gone\n[1, 4]\n"),
        ("ray-2", "started\n"),
    ):
        card.fold(event(Kind.LOG, node=0, stream=stream, offset=0, text=text))
    assert [(line["writer"], line["text"]) for line in card.log.lines()] == [
        ("driver", "cell"),
        ("driver", "again"),
        ("burn 4711", "burning 0"),
        ("cool 4711", "cooling"),
        ("worker 12", "who?"),
        ("driver", "[1, 4]"),
        ("ray", "started"),
    ]


def test_how_ray_starts_is_of_interest_while_it_starts() -> None:
    card = model()
    for stream in ("ray", "worker-1.out"):
        card.fold(event(Kind.LOG, node=0, stream=stream, offset=0, text="up\nopen"))
    assert [line["writer"] for line in card.log.lines()] == ["ray", "worker 1", "ray", "worker 1"]
    card.fold(event(Kind.STATE, state="ready"))
    card.fold(event(Kind.LOG, node=0, stream="ray", offset=9, text="exit logs\n"))
    assert [line["writer"] for line in card.log.lines()] == ["worker 1", "worker 1"]


def test_control_lines_take_no_room_from_what_people_wrote() -> None:
    card = model()
    card.fold(event(Kind.LOG, node=0, stream="worker-1.out", offset=0, text="first\n" + ":task_name:f\n" * 1000 + "last\n"))
    assert [line["text"] for line in card.log.lines()] == ["first", "last"]


@given(st.lists(st.text(max_size=3000), max_size=30))
def test_the_log_is_bounded(chunks: list[str]) -> None:
    card = model()
    for chunk in chunks:
        card.fold(event(Kind.LOG, node=0, stream="driver", offset=0, text=chunk * 10))
    shown = card.log.lines()
    assert len(shown) <= LOG_LINES
    assert sum(len(line["text"].encode(errors="replace")) for line in shown) <= LOG_BYTES


def test_512_gpus_fit_in_one_small_snapshot() -> None:
    card = model()
    for node in range(64):
        card.fold(event(Kind.NODE, node=node, host=f"gpu-node-{node:03}", state="joined", gpus=[gpu(str(index)) for index in range(8)]))
    assert len(json.dumps(card.to_json(T))) < 50_000
    assert len(card.nodes.frame()) == 512 * 16

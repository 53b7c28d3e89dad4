"""The receipt reads well without a kernel, a widget or styles."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.receipt import gpu_time, receipt, static_card
from jupyter_aicluster.state import Observation, Word

T = 1_700_000_000.0


def asked() -> CardModel:
    return CardModel(name="fox", backend="local", gpus=4, asked_s=T, cell_id="c1", names_sent=("x",), names_expected=("y",))


def event(_kind: str, _at: float = 0.0, **data: Any) -> Event:
    return Event(1, 1, T + _at, _kind, data)


def running() -> CardModel:
    card = asked()
    gpu = {"name": "simulated GPU", "mem_total_bytes": 2**34, "simulated": True}
    card.fold(Observation(Word.GRANTED))
    for node, host in enumerate("ab"):
        card.fold(event(Kind.NODE, node=node, host=host, state="joined", gpus=[gpu | {"index": str(2 * node + k)} for k in (0, 1)]))
    card.fold(event(Kind.STATE, 10, state="ready", attempt=1))
    card.fold(event(Kind.CELL, cell_id="c1", phase="running", started_s=T + 12))
    return card


def done() -> CardModel:
    card = running()
    card.fold(event(Kind.CELL, cell_id="c1", phase="done", started_s=T + 12, ended_s=T + 370, names=["y"]))
    card.names_back = ["y"]
    end: dict[str, Any] = {
        "ending": "done",
        "cause": "its job is done",
        "ended_s": T + 370,
        "joined_s": T + 10,
        "gpus": 4,
        "busy_gpu_s": 720.0,
    }
    card.fold(event(Kind.END, **end, used_gpus=2, peak_mem_bytes=3_100_000_000))
    card.fold(Observation(Word.ENDED))
    return card


def test_while_it_runs_it_says_how_to_come_back() -> None:
    text = receipt(running().to_json(T + 60))["text/plain"].splitlines()
    assert text[:4] == [
        "fox: Running as one process",
        "  GPUs: 4 simulated on 2 nodes, local",
        "  Sent: x",
        "  Expected back: y",
    ]
    assert text[-1] == "  Watch it: %gpujob attach fox"
    assert re.fullmatch(r"  As of: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text[-2])


def test_at_the_end_the_result_is_first_and_the_cost_second() -> None:
    text = receipt(done().to_json(T + 400))["text/plain"]
    assert text.splitlines()[:2] == [
        "fox: Done after 5:58 · 4 simulated GPUs given back",
        "  24 GPU-minutes held, 50 % of it busy · waited 10 s · ran 6:00 · peak memory 3.1 GB on a GPU",
    ]
    assert "  Came back: y\n" in text
    assert "--gpus 2 would have been enough" in text
    assert "attach" not in text


def test_html_is_one_folded_line_while_it_runs_and_the_cost_is_seen_at_the_end() -> None:
    card = running()
    card.fold(event(Kind.GPUS, node=0, samples=[{"index": "0", "util_percent": 50.0}]))  # of the moment: not for the receipt
    live = receipt(card.to_json(T + 60))["text/html"]
    assert live.startswith("<details><summary><b>fox</b>: Running as one process</summary><table>")
    over = receipt(done().to_json(T + 400))["text/html"]
    assert over.startswith("<details><summary><b>fox</b>: Done after 5:58 · 4 simulated GPUs given back<br>24 GPU-minutes held, ")


def test_only_elements_and_no_attributes_so_that_no_sanitiser_changes_anything() -> None:
    card = done()
    card.fold(event(Kind.LOG, node=0, stream="driver-x", offset=0, text="a\n"))
    snapshot = card.to_json(T)
    for page in (receipt(snapshot)["text/html"], static_card(snapshot, card.log.lines())["text/html"]):
        assert set(re.findall(r"<([^>]*)>", page)) <= {
            f"{end}{name}"
            for name in ("details", "summary", "b", "br", "table", "tbody", "tr", "th", "td", "ul", "li", "pre", "code")
            for end in ("", "/")
        }


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.0013, "5 GPU-seconds"), (0.01, "36 GPU-seconds"), (0.05, "3 GPU-minutes"), (1.26, "1.3 GPU-hours"), (250.0, "250 GPU-hours")],
)
def test_gpu_time_is_told_in_units_that_fit(hours: float, text: str) -> None:
    assert gpu_time(hours) == text


def test_an_error_is_seen_without_unfolding() -> None:
    card = running()
    error = {"ename": "ValueError", "evalue": "no"}
    card.fold(event(Kind.CELL, cell_id="c1", phase="failed", started_s=T + 12, ended_s=T + 12.5, names=[], error=error))
    bundle = receipt(card.to_json(T + 20))
    assert bundle["text/plain"].startswith(
        "fox: Failed in under 1 s · 4 simulated GPUs held: mend the cell and run it again\n  ValueError: no\n"
    )
    assert "run it again<br>ValueError: no</summary>" in bundle["text/html"]


def test_notices_stay_in_the_receipt() -> None:
    card = running()
    card.fold(event(Kind.STATE, attempt=2, state="starting", cause="Ray fell on node 1"))
    assert "  Note: Attempt 2: Ray fell on node 1; all start again together\n" in receipt(card.to_json(T))["text/plain"]


def test_html_has_no_styles_and_nothing_of_the_users_is_markup() -> None:
    card = running()
    error = {"ename": "ValueError", "evalue": "<script>alert(1)</script>"}
    card.fold(event(Kind.CELL, cell_id="c1", phase="failed", names=[], error=error))
    card.fold(event(Kind.LOG, node=0, stream="driver", offset=0, text="<b>bold</b>\n"))
    snapshot = card.to_json(T)
    for page in (receipt(snapshot)["text/html"], static_card(snapshot, card.log.lines())["text/html"]):
        assert "style" not in page
        assert "<script" not in page
        assert "<b>bold" not in page


def test_the_static_card_keeps_nodes_and_the_end_of_the_log() -> None:
    card = done()
    card.fold(event(Kind.LOG, node=1, stream="raylet", offset=0, text="\n".join(f"line {number}" for number in range(50)) + "\n"))
    text = static_card(card.to_json(T), card.log.lines())["text/plain"].splitlines()
    assert text[:2] == ["node 0 a: 2 × simulated GPU", "node 1 b: 2 × simulated GPU"]
    assert text[2:] == [f"1 raylet | line {number}" for number in range(30, 50)]


def test_a_request_that_never_ran() -> None:
    card = asked()
    bundle = static_card(card.to_json(T), card.log.lines())
    assert bundle == {"text/plain": "", "text/html": ""}  # the receipt says it all

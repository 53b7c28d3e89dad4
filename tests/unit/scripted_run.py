"""One cell's run on one cluster, told by a script instead of a hub: for notebooks whose outputs are looked at."""

from __future__ import annotations

import time
from typing import Any

from IPython.core.getipython import get_ipython

from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.jupyter.board import Board
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.faces import open_face
from jupyter_aicluster.state import Observation, Word


def run(log_bytes: int = 100_000) -> None:
    """Show it in the running cell: queued, joined, running, a log, done, given back."""
    now = time.time()
    model = CardModel(name="fox", backend="local", gpus=4, asked_s=now, cell_id="c1", names_sent=("x",), names_expected=("y",))
    board = Board(model, open_face(model, get_ipython(), lambda event, seconds: None))
    board.show()
    for change in _script(now, log_bytes):
        board.change(change)
    board.came_back(["y"])
    board.rest()


def _script(now: float, log_bytes: int) -> list[Observation | Event]:
    def event(_kind: str, **data: Any) -> Event:
        return Event(1, 1, now, _kind, data)

    gpus = [{"index": str(index), "name": "simulated GPU", "mem_total_bytes": 2**34, "simulated": True} for index in range(4)]
    samples = [{"index": str(index), "util_percent": 50.0, "mem_used_bytes": 2**30} for index in range(4)]
    end = {"ending": "done", "cause": "its job is done", "ended_s": now, "joined_s": now, "gpus": 4, "busy_gpu_s": 0.0}
    return [
        Observation(Word.QUEUED, reason="Waiting for 4 GPUs", position=1, queue_length=1),
        Observation(Word.GRANTED),
        event(Kind.NODE, node=0, host="a", state="joined", gpus=gpus),
        event(Kind.STATE, state="ready", attempt=1),
        event(Kind.CELL, cell_id="c1", phase="running", started_s=now),
        event(Kind.GPUS, node=0, samples=samples),
        *(event(Kind.LOG, node=0, stream="driver-x", offset=0, text=f"{'x' * 999}\n") for _ in range(log_bytes // 1000)),
        event(Kind.CELL, cell_id="c1", phase="done", started_s=now, ended_s=now, names=["y"]),
        event(Kind.END, **end),
        Observation(Word.ENDED),
    ]

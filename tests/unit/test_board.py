"""How often a board tells its face, and what it tells last."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.jupyter.board import PUSH_S, Board
from jupyter_aicluster.jupyter.card_model import CardModel
from jupyter_aicluster.jupyter.faces import Face
from jupyter_aicluster.state import Observation, Word


@dataclass
class Recorder(Face):
    model: CardModel
    pushed: list[tuple[bool, str]] = field(default_factory=list)
    finished: threading.Event = field(default_factory=threading.Event)
    told: threading.Event = field(default_factory=threading.Event)

    def push(self, news: bool) -> None:
        self.pushed.append((news, self.model.sentence(0.0)))
        self.told.set()

    def finish(self) -> None:
        self.finished.set()


def board() -> tuple[Board, Recorder]:
    model = CardModel(name="fox", backend="local", gpus=4, asked_s=0.0)
    face = Recorder(model)
    return Board(model, face), face


def event(_kind: str, **data: Any) -> Event:
    return Event(1, 1, 0.0, _kind, data)


def test_a_flood_of_changes_is_a_few_updates_and_the_last_one_is_shown() -> None:
    shown, face = board()
    shown.show()
    begun = time.monotonic()
    for number in range(3000):
        shown.change(event(Kind.NOTICE, text=f"step {number}"))
        shown.change(event(Kind.LOG, node=0, stream="driver", offset=0, text="line\n"))
    assert len(face.pushed) <= 2 + (time.monotonic() - begun) / PUSH_S
    shown.change(Observation(Word.GRANTED))
    shown.rest()
    assert face.pushed[-1] == (True, "Starting on 4 GPUs")


def test_once_the_cell_is_over_only_changes_of_state_are_shown_and_those_not_too_often_either() -> None:
    shown, face = board()
    shown.show()
    shown.change(Observation(Word.GRANTED))
    shown.rest()
    count = len(face.pushed)
    face.told.clear()
    for _ in range(100):
        shown.change(event(Kind.LOG, node=0, stream="driver", offset=0, text="line\n"))
    begun = time.monotonic()
    for number in range(1000):
        shown.change(event(Kind.NOTICE, text=f"step {number}"))
    assert face.told.wait(5)
    assert all(news for news, _ in face.pushed[count:])
    assert len(face.pushed) - count <= 2 + (time.monotonic() - begun) / PUSH_S


def test_the_end_finishes_the_face_once_even_when_nobody_waits() -> None:
    shown, face = board()
    shown.show()
    shown.rest()
    shown.change(Observation(Word.ENDED))
    assert face.finished.wait(5)
    count = len(face.pushed)
    shown.rest()
    shown.retire()
    assert len(face.pushed) == count


def test_a_retired_board_says_no_more() -> None:
    shown, face = board()
    shown.show()
    shown.retire()
    count = len(face.pushed)
    shown.change(Observation(Word.GRANTED))
    shown.rest()
    assert face.finished.is_set()
    assert len(face.pushed) == count

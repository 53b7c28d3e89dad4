from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_aicluster.agent.outputs import MAX_TEXT_CHARS, Outputs, Stream, collapse


class Shown:
    """What was handed on, and the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outputs: list[Any] = []
        self.descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        self.collector = Outputs(lambda cell_id, output: self.outputs.append(output), self.descriptor)

    @property
    def log(self) -> str:
        return self.path.read_text()

    @property
    def text(self) -> str:
        self.collector.flush()
        return "".join(output["text"] for output in self.outputs if output["output_type"] == "stream")


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    made = Shown(tmp_path / "log")
    yield made
    os.close(made.descriptor)


def test_text_is_joined_by_stream_and_stays_in_order_with_displays(shown: Shown) -> None:
    shown.collector.begin("c1")
    for name, text in (("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d")):
        shown.collector.text(name, text)
    shown.collector.display({"output_type": "display_data", "data": {}})
    shown.collector.text("stdout", "e")
    shown.collector.end()
    assert [(output.get("name"), output.get("text")) for output in shown.outputs] == [
        ("stdout", "ab"),
        ("stderr", "c"),
        ("stdout", "d"),
        (None, None),
        ("stdout", "e"),
    ]
    assert shown.log == "abcde"


def test_between_cells_text_goes_to_the_log_only(shown: Shown) -> None:
    shown.collector.text("stdout", "before ")
    shown.collector.begin("c1")
    shown.collector.text("stdout", "in ")
    shown.collector.end()
    shown.collector.text("stdout", "after")
    assert shown.text == "in "
    assert shown.log == "before in after"


def test_a_flood_is_cut_once_and_is_whole_in_the_log(shown: Shown) -> None:
    shown.collector.begin("c1")
    for _ in range(40):
        shown.collector.text("stdout", "x" * 99_999 + "\n")
    shown.collector.end()
    assert shown.text.count("%gpujob logs") == 1
    assert MAX_TEXT_CHARS < len(shown.text) < MAX_TEXT_CHARS + 200
    assert len(shown.log) == 4_000_000
    shown.collector.begin("c2")
    shown.collector.text("stdout", "fresh")
    assert shown.text.endswith("fresh")


def test_a_progress_bar_never_uses_up_the_room(shown: Shown) -> None:
    shown.collector.begin("c1")
    for step in range(3000):
        shown.collector.text("stderr", f"\r{step:>999}")
        shown.collector.flush()
    shown.collector.text("stdout", "\nresult")
    assert "%gpujob logs" not in shown.text
    assert shown.text.endswith("\nresult")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\rb\rc", "\rc"),
        ("10%\r20%\r30%\nnext", "\r30%\nnext"),
        ("dos\r\nline", "dos\r\nline"),
        ("unfinished\r", "unfinished\r"),
        ("plain\ntext", "plain\ntext"),
        ("a\r\x1b[Ab\rc", "a\r\x1b[Ab\rc"),  # nested bars move the cursor: left alone
    ],
)
def test_only_what_is_overwritten_is_left_out(text: str, kept: str) -> None:
    assert collapse(text) == kept


def test_a_stream_takes_only_text_and_looks_like_a_file(shown: Shown) -> None:
    stream = Stream(shown.collector, "stderr")
    with pytest.raises(TypeError):
        stream.write(b"bytes")  # type: ignore[arg-type]
    stream.close()
    assert (stream.fileno(), stream.isatty(), stream.encoding, stream.writable()) == (2, False, "utf-8", True)
    shown.collector.begin("c1")
    print("still open", file=stream, flush=True)
    assert shown.text == "still open\n"

"""Log text by offset: whatever is cut, sent again or answered late, each byte reaches the hub once and in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jupyter_aicluster.agent import logs
from jupyter_aicluster.agent.logs import Gap, LogBook, Tailer

STREAMS = ("ray", "worker-7.out")


class Shipping(RuleBasedStateMachine):
    """Files that grow on a node, a network that loses requests and answers and repeats what it carried, a hub that may start anew."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        self.hubs = 0
        self.files = {stream: root / stream for stream in STREAMS}
        self.written = dict.fromkeys(STREAMS, b"")
        self.sent: list[tuple[str, int, bytes]] = []
        self.tailer = Tailer()
        self.new_hub()
        for stream, path in self.files.items():
            self.tailer.follow(stream, path)

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(stream=st.sampled_from(STREAMS), text=st.binary(min_size=1, max_size=20))
    def write(self, stream: str, text: bytes) -> None:
        with self.files[stream].open("ab") as file:
            file.write(text)
        self.written[stream] += text

    @rule(request_arrives=st.booleans(), answer_arrives=st.booleans())
    def ship(self, request_arrives: bool, answer_arrives: bool) -> None:
        for stream, at, data in self.tailer.pending():
            self.sent.append((stream, at, data))
            have = self.deliver(stream, at, data) if request_arrives else None
            if have is not None and answer_arrives:
                self.tailer.acknowledge(stream, have)

    @rule(pick=st.integers(0, 10**6))
    def an_old_request_arrives_again(self, pick: int) -> None:
        if self.sent:
            self.deliver(*self.sent[pick % len(self.sent)])

    @rule()
    def followed_again(self) -> None:
        for stream, path in self.files.items():
            self.tailer.follow(stream, path)

    @rule()
    def new_hub(self) -> None:
        self.hubs += 1
        self.book = LogBook(Path(self.folder.name) / f"hub{self.hubs}")

    def deliver(self, stream: str, at: int, data: bytes) -> int:
        before = self.book.read(1, 0, stream)
        try:
            have, new = self.book.append(1, 0, stream, at, data)
        except Gap as gap:
            assert self.book.read(1, 0, stream) == before
            return gap.have
        assert self.book.read(1, 0, stream) == before + new
        assert have == len(before + new)
        return have

    @invariant()
    def the_hub_has_a_beginning_of_each_file(self) -> None:
        for stream, text in self.written.items():
            assert text.startswith(self.book.read(1, 0, stream))

    @rule()
    def once_the_network_works_nothing_is_missing(self) -> None:
        for stream in STREAMS:
            self.write(stream, b".")  # a new hub that has less is noticed when there is something to say
        for _ in range(4):  # a new hub's gap first, then all of it
            self.ship(request_arrives=True, answer_arrives=True)
        for stream, text in self.written.items():
            assert self.book.read(1, 0, stream) == text
        assert list(self.tailer.pending()) == []


TestShipping = Shipping.TestCase


@given(st.binary(max_size=300), st.integers(1, 50))
def test_a_big_file_goes_in_bounded_pieces(text: bytes, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "CHUNK_BYTES", size)
        path, book, tailer = Path(folder, "log"), LogBook(Path(folder, "hub")), Tailer()
        path.write_bytes(text)
        tailer.follow("ray", path)
        while pieces := list(tailer.pending()):
            for stream, at, data in pieces:
                assert len(data) <= size
                tailer.acknowledge(stream, book.append(1, 0, stream, at, data)[0])
        assert book.read(1, 0, "ray", most=1000) == text


def test_a_hole_is_refused_and_says_where_to_resume(tmp_path: Path) -> None:
    book = LogBook(tmp_path)
    book.append(1, 0, "ray", 0, b"abc")
    with pytest.raises(Gap) as caught:
        book.append(1, 0, "ray", 4, b"e")
    assert caught.value.have == 3
    assert book.append(1, 0, "ray", 1, b"bcde") == (5, b"de")
    assert book.append(1, 0, "ray", 0, b"abc") == (5, b"")
    assert book.read(1, 0, "ray") == b"abcde"


def test_ranges_tails_and_the_list_of_streams(tmp_path: Path) -> None:
    book = LogBook(tmp_path)
    book.append(1, 0, "ray", 0, b"".join(b"line %d\n" % n for n in range(2000)))
    book.append(1, 3, "driver-main", 0, b"\xff\xc3")
    book.append(2, 0, "ray", 0, b"next attempt")
    assert book.read(1, 0, "ray", start=5, most=4) == b"0\nli"
    assert book.read(1, 0, "ray", start=10**6) == b""
    assert book.read(1, 9, "ray") == b""
    assert book.tail(1, 0, "ray", lines=2) == "line 1998\nline 1999"
    assert book.tail(1, 3, "driver-main") == "\ufffd\ufffd"
    assert book.tail(1, 9, "ray") == ""
    assert list(book.streams(1)) == [(0, "ray", 18890), (3, "driver-main", 2)]
    assert list(book.streams(7)) == []


@pytest.mark.parametrize("stream", ["../../etc/passwd", "..", "a/b", "", "a\0"])
def test_a_stream_name_is_no_path(tmp_path: Path, stream: str) -> None:
    book, tailer = LogBook(tmp_path / "hub"), Tailer()
    with pytest.raises(ValueError, match="not a stream name"):
        book.append(1, 0, stream, 0, b"x")
    (tmp_path / "log").write_text("x")
    tailer.follow(stream, tmp_path / "log")
    assert list(tailer.pending()) == []
    assert not (tmp_path / "hub").exists()


def test_files_that_come_later_vanish_or_are_forgotten(tmp_path: Path) -> None:
    tailer = Tailer()
    tailer.follow("ray", tmp_path / "ray.log")
    assert list(tailer.pending()) == []
    (tmp_path / "ray.log").write_bytes(b"abc")
    assert list(tailer.pending()) == [("ray", 0, b"abc")]
    tailer.acknowledge("ray", 2)
    assert list(tailer.pending()) == [("ray", 2, b"c")]
    (tmp_path / "ray.log").unlink()
    assert list(tailer.pending()) == []
    tailer.forget()
    tailer.acknowledge("ray", 0)
    (tmp_path / "ray.log").write_bytes(b"abc")
    assert list(tailer.pending()) == []

"""The journal: every event once, in order, from any cursor; and its copy in storage."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.agent.journal import Journal, Mirror, append_rest
from jupyter_aicluster.events import Cursor, Event

said = st.lists(st.tuples(st.integers(1, 3), st.text(max_size=30)), max_size=40).map(lambda all_: sorted(all_, key=lambda one: one[0]))


def filled(folder: str, texts: list[tuple[int, str]]) -> tuple[Journal, list[Event]]:
    journal = Journal(Path(folder) / "journal")
    return journal, [journal.append(attempt, float(n), "notice", {"text": text}) for n, (attempt, text) in enumerate(texts)]


def place(event: Event) -> Cursor:
    return Cursor(event.attempt, event.seq)


@given(said, st.integers(0, 4), st.integers(0, 45))
def test_any_cursor_is_resumed_exactly(texts: list[tuple[int, str]], attempt: int, seq: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal, events = filled(folder, texts)
        cursor = Cursor(attempt, seq)
        read = list(journal.after(cursor))
        assert [Event.from_line(line) for _, line in read] == [event for event in events if place(event) > cursor]
        assert [at for at, _ in read] == [place(event) for event in events if place(event) > cursor]


@given(said, st.integers(1, 200))
def test_a_reader_that_is_cut_again_and_again_hears_each_event_once(texts: list[tuple[int, str]], most: int) -> None:
    """Whatever it has taken of a batch when the line is cut, and whatever is appended meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        heard: list[Event] = []
        written: list[Event] = []
        cursor = Cursor()
        for n, (attempt, text) in enumerate(texts):
            written.append(journal.append(attempt, float(n), "notice", {"text": text}))
            for taken, (at, line) in enumerate(journal.after(cursor, most)):
                if taken > n % 3:
                    break
                heard.append(Event.from_line(line))
                cursor = at
        while batch := list(journal.after(cursor, most)):
            heard += [Event.from_line(line) for _, line in batch]
            cursor = batch[-1][0]
        assert heard == written


def test_a_batch_is_bounded_but_never_empty(tmp_path: Path) -> None:
    journal, _ = filled(str(tmp_path), [(1, "x" * 1000)] * 10)
    assert len(list(journal.after(Cursor(), most_bytes=1))) == 1
    assert len(list(journal.after(Cursor(), most_bytes=2500))) == 3


def test_lines_are_ndjson_on_disk_as_they_are_sent(tmp_path: Path) -> None:
    journal, events = filled(str(tmp_path), [(1, "ü"), (1, "line\nbreak"), (2, "")])
    assert journal.path(1).read_bytes() == events[0].to_line() + events[1].to_line()
    assert [event.seq for event in events] == [1, 2, 1]


def test_a_new_journal_over_an_old_ones_files_goes_on(tmp_path: Path) -> None:
    filled(str(tmp_path), [(1, "a"), (1, "b")])
    again = Journal(tmp_path / "journal")
    event = again.append(1, 9.0, "notice", {"text": "c"})
    assert event.seq == 3
    assert [Event.from_line(line).data["text"] for _, line in again.after(Cursor())] == ["a", "b", "c"]


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_a_copy_is_brought_up_to_date_piece_by_piece(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "storage", "deep", "target")
        for piece in pieces:
            with source.open("ab") as file:
                file.write(piece)
            append_rest(source, target)
            assert target.read_bytes() == source.read_bytes()


def test_the_mirror_copies_trees_and_once_more_at_the_end(tmp_path: Path) -> None:
    logs, journal = tmp_path / "logs", tmp_path / "journal"
    (logs / "1" / "0").mkdir(parents=True)
    journal.mkdir()
    mirror = Mirror(
        [(logs, tmp_path / "s" / "logs"), (journal, tmp_path / "s" / "journal"), (tmp_path / "none", tmp_path / "s" / "none")], period_s=60
    )
    mirror.start()
    (logs / "1" / "0" / "ray").write_bytes(b"text")
    (journal / "1.ndjson").write_bytes(b"{}\n")
    assert mirror.finish()
    assert (tmp_path / "s" / "logs" / "1" / "0" / "ray").read_bytes() == b"text"
    assert (tmp_path / "s" / "journal" / "1.ndjson").read_bytes() == b"{}\n"


def test_one_file_that_storage_refuses_keeps_back_no_other(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for name in ("a", "b"):
        (tmp_path / "source" / name).write_text(name)
    (tmp_path / "target" / "a").mkdir(parents=True)  # not a file
    mirror = Mirror([(tmp_path / "source", tmp_path / "target")], period_s=60)
    mirror.start()
    assert mirror.finish()
    assert (tmp_path / "target" / "b").read_text() == "b"


def test_storage_that_hangs_hangs_the_mirror_alone(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("a")
    os.mkfifo(tmp_path / "pipe")  # opening it waits for a reader
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a").symlink_to(tmp_path / "pipe")
    mirror = Mirror([(tmp_path / "source", tmp_path / "target")], period_s=60)
    mirror.start()
    assert not mirror.finish(timeout_s=0.05)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY)  # let it go
    os.close(reader)
    assert not [thread for thread in threading.enumerate() if thread.name == "mirror" and not thread.daemon]
    assert mirror.finish()

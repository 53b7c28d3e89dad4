"""Events on the wire and cursors over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.events import LIVE, Cursor, Event, Kind

data = st.dictionaries(
    st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5)
)


@given(st.integers(1, 9), st.integers(0, 10**9), st.integers(0, 2 * 10**12), st.sampled_from(Kind) | st.text(), data)
def test_an_event_is_one_line_and_comes_back(attempt: int, seq: int, time_ms: int, kind: str, said: dict[str, object]) -> None:
    event = Event(attempt, seq, time_ms / 1000, kind, said)
    line = event.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Event.from_line(line) == event


@given(st.integers(0, 200))
def test_a_line_cut_in_half_is_a_value_error(at: int) -> None:
    line = Event(1, 7, 1.5, Kind.NOTICE, {"text": "ünï", "n": [1, 2]}).to_line().rstrip()
    with pytest.raises(ValueError):
        Event.from_line(line[: min(at, len(line) - 1)])


@pytest.mark.parametrize("line", [b"[]", b"{}", b"7", b'{"a":1,"s":2,"t":3,"k":"log"}', b'{"a":null,"s":2,"t":3,"k":"x","d":{}}'])
def test_json_that_is_no_event_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        Event.from_line(line)


@given(st.builds(Cursor, st.integers(0, 9), st.integers(0, 10**9)), st.builds(Cursor, st.integers(0, 9), st.integers(0, 10**9)))
def test_cursors_are_ordered_as_what_they_point_at(one: Cursor, other: Cursor) -> None:
    assert Cursor.parse(str(one)) == one
    assert (one < other) == ((one.attempt, one.seq) < (other.attempt, other.seq))


def test_a_cursor_without_seq_is_the_attempts_beginning() -> None:
    assert Cursor.parse("3") == Cursor(3, 0) == Cursor.parse("3.")


def test_what_is_live_is_never_the_only_word_on_a_state() -> None:
    assert not LIVE & {Kind.STATE, Kind.CELL, Kind.OUTPUT, Kind.END, Kind.NOTICE, Kind.GATE, Kind.NODE}

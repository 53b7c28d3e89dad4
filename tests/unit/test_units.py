"""Durations and sizes as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.errors import SpecError
from jupyter_aicluster.units import format_duration, format_size, parse_duration, parse_size

DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d12h", 36 * 3600),
        ("90", 5400),  # a bare number is minutes, as Slurm reads it
        ("2:00", 120),  # Slurm's minutes:seconds
        ("2:00:00", 7200),
        ("1-00:00:00", DAY),
        ("1-12:00", 36 * 3600),
        (" 2H ", 7200),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "0", "0s", "0:00", "-5", "-1h", "1.5h", "2 hours", "1h 30m", "30m1h", "UNLIMITED", "infinite", "1:2:3:4", "h", "²"]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_duration(text)
    assert repr(text) in caught.value.what
    assert "2:00:00" in caught.value.hint
    assert "Nothing was submitted." in str(caught.value)


@given(st.integers(1, 400 * DAY))
def test_a_clock_text_means_what_it_shows(seconds: int) -> None:
    text = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    assert parse_duration(text) == seconds == parse_duration(f"{seconds}s")


@given(st.integers(0, 400 * DAY))
def test_a_shown_duration_is_read_back_exactly(seconds: int) -> None:
    shown = format_duration(seconds)
    if seconds < 60:
        assert shown == f"{seconds} s"
    else:
        assert parse_duration(shown.replace(" d ", "-")) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1:00"), (185, "3:05"), (7200, "2:00:00"), (3 * DAY + 4 * 3600, "3 d 4:00:00")],
)
def test_shown_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("64G", 64 << 30), ("512MiB", 512 << 20), ("1.5T", 3 << 39), ("1000", 1000 << 20), ("2kb", 2048), ("1 g", 1 << 30), ("0.5K", 512)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "0", "0G", "-1G", "1.G", "1e3", "64 giga", "64GG"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="not an amount of memory"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (3, "3 B"),
        (999, "999 B"),
        (1400, "1.4 kB"),
        (64_000_000, "64.0 MB"),
        (99_960_000, "100 MB"),
        (999_600, "1.0 MB"),
        (5e15, "5000 TB"),
    ],
)
def test_shown_sizes(size: float, text: str) -> None:
    assert format_size(size) == text


@given(st.floats(0, 999e12))
def test_a_shown_size_is_close_and_short(size: float) -> None:
    number, unit = format_size(size).split()
    shown = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert shown == pytest.approx(size, rel=0.05, abs=0.5)
    assert len(number) <= 4

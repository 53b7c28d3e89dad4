"""Durations and sizes as people type them, and back."""

from __future__ import annotations

import re

from jupyter_aicluster.errors import SpecError

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}))?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_duration(text: str) -> int:
    """Seconds in ``90s``, ``30m``, ``2h``, ``1d12h``, ``2:00:00`` (h:m:s), ``1-00:00:00`` or ``90`` (minutes).

    ``2:00`` is Slurm's minutes:seconds. Raises `SpecError` for anything else, zero and "UNLIMITED" included.
    """
    word = text.strip().lower()
    seconds = 0
    if word.isdecimal():
        seconds = int(word) * 60
    elif clock := _CLOCK.fullmatch(word):
        days, first, second, third = clock.groups()
        if third is None and days is None:
            seconds = int(first) * 60 + int(second)
        else:
            seconds = int(days or 0) * 86400 + int(first) * 3600 + int(second) * 60 + int(third or 0)
    elif word and (parts := _DURATION.fullmatch(word)):
        days, hours, minutes, rest = (int(part or 0) for part in parts.groups())
        seconds = days * 86400 + hours * 3600 + minutes * 60 + rest
    if seconds <= 0:
        raise SpecError(f"{text!r} is not a duration", hint="write 90s, 30m, 2h, 2:00:00, or a number of minutes")
    return seconds


def format_duration(seconds: float) -> str:
    """``42 s``, ``3:05``, ``2:00:00``, ``3 d 4:00:00``: what a clock shows, never negative."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    clock = f"{hours}:{minutes:02}:{rest:02}" if hours or days else f"{minutes}:{rest:02}"
    return f"{days} d {clock}" if days else clock


def parse_size(text: str) -> int:
    """Bytes in ``64G``, ``512MiB``, ``1.5T``, ``1000`` (MB, as Slurm reads ``--mem``). Powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"{text!r} is not an amount of memory", hint="write 64G, 512M or 1.5T")
    number, unit, _ = match.groups()
    value = int(float(number) * 1024 ** _POWER[unit.upper() or "M"])
    if value <= 0:
        raise SpecError(f"{text!r} is not an amount of memory", hint="write 64G, 512M or 1.5T")
    return value


def format_size(size_bytes: float) -> str:
    """``3 B``, ``1.4 kB``, ``64.0 MB``: decimal units, three significant figures."""
    value, unit = float(size_bytes), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, bigger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"

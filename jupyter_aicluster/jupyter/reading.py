"""Words of a ``%%gpujob`` line, and the values of its flags. Pure."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.jupyter.flags import FLAGS, HABITS, Flag

_BRACES = re.compile(r"\{([A-Za-z_]\w*)\}")


def split(line: str) -> list[str]:
    """Words as a shell would split them, without a trailing ``# comment`` and without expanding anything."""
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (at == 0 or line[at - 1].isspace()):
            line = line[:at]
            break
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"a quote is not closed in: {line.strip()}", hint="close it, or put a backslash before it") from error


def read(
    words: Sequence[str], names: Mapping[str, object], verb: tuple[str, frozenset[str], str] | None
) -> tuple[dict[str, object], list[str]]:
    """(values by key, words of no flag). ``verb``: its name, the keys it takes, its help; None for a cell. Raises `UsageError`."""
    given: dict[str, object] = {}
    rest: list[str] = []
    feed = iter(words)
    for word in feed:
        if not word.startswith("-") or word == "-":
            rest.append(_expand(word, names))
            continue
        flag, typed, value = _find(word)
        if verb is not None and flag.key not in verb[1]:
            raise UsageError(f"{typed} has no meaning for %gpujob {verb[0]}", hint=verb[2])
        if flag.later:
            raise UsageError(f"{typed} ({flag.help}) is not possible in this version yet", hint=f"leave {typed} out")
        if not flag.value:
            if value is not None:
                raise UsageError(f"{typed} takes no value", hint=f"just {typed}")
            given[flag.key] = True
            continue
        if value is None:
            value = next(feed, None)
            if value is None or value.startswith("--") or value in FLAGS:
                raise UsageError(f"{typed} needs a value ({flag.value})", hint=f"{flag.help}")
        if flag.key != "env":
            value = _expand(value, names)
        try:
            read = flag.read(value)
        except UsageError as error:
            raise UsageError(f"{typed}: {error.what}", hint=error.hint) from error
        if flag.many:
            given[flag.key] = (*_tuple(given.get(flag.key)), *_tuple(read))
        elif flag.key in given:
            raise UsageError(f"{typed} is given twice", hint=f"keep one {typed}")
        else:
            given[flag.key] = read
    return given, rest


def _find(word: str) -> tuple[Flag, str, str | None]:
    """(flag, as typed, its value where attached): ``--gpus=4``, ``-N2``, ``--gpus``."""
    head, equals, value = word.partition("=")
    attached: str | None = value if equals else None
    if not head.startswith("--") and len(head) > 2:  # -N2, -pgpu; an equals sign then belongs to the value
        head, attached = word[:2], word[2:].removeprefix("=")
    if head in FLAGS:
        return FLAGS[head], head, attached
    if head in HABITS:
        raise UsageError(f"{head} is not a flag of %%gpujob", hint=f"write {HABITS[head]}")
    close = difflib.get_close_matches(head, FLAGS, 1)
    raise UsageError(f"there is no flag {head}", hint=f"did you mean {close[0]}?" if close else "%%gpujob? lists the flags")


def _expand(text: str, names: Mapping[str, object]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in names:
            raise UsageError(
                f"{match[0]} on the %%gpujob line: no variable {match[1]!r} here", hint=f"assign {match[1]} first, or write the value"
            )
        return str(names[match[1]])

    return _BRACES.sub(value, text)


def _tuple(value: object) -> tuple[object, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)

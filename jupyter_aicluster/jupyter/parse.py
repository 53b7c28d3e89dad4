"""What the user typed after ``%%gpujob`` or ``%gpujob``, understood or refused. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.jupyter.cell_options import CellOptions, cell_options
from jupyter_aicluster.jupyter.flags import FLAGS, usage_lines, variables
from jupyter_aicluster.jupyter.reading import read, split
from jupyter_aicluster.units import parse_duration


@dataclass(frozen=True, slots=True)
class Verb:
    """One ``%gpujob`` line. ``name`` is "" for the bare magic, ``cluster`` None for this notebook's latest."""

    name: str
    cluster: str | None = None
    options: CellOptions = field(default_factory=CellOptions)
    given: Mapping[str, object] = field(default_factory=dict)  # what was written, for `defaults`
    duration_s: int | None = None
    node: int | None = None
    stream: str | None = None
    clear: bool = False
    names: tuple[str, ...] = ()  # for `fetch`


@dataclass(frozen=True, slots=True)
class _Word:
    help: str
    takes: frozenset[str] = frozenset()  # keys of flags
    cluster: bool = False  # may name a cluster
    later: bool = False


_CELL_ONLY = frozenset({"on", "new", "inputs", "outputs", "max_ship", "dry_run", "spmd", "per", "gather"})
_ASK = frozenset(flag.key for flag in FLAGS.values()) - _CELL_ONLY
_VERBS: dict[str, _Word] = {
    "up": _Word("ask for a cluster and keep it: up --gpus 4", _ASK),
    "down": _Word("give it back", cluster=True),
    "plan": _Word("what exactly would be submitted, and whether it fits: plan --gpus 4", _ASK),
    "list": _Word("my clusters", cluster=True),
    "use": _Word("run this notebook's cells on that cluster: use fox", cluster=True),
    "attach": _Word("watch what runs there, and get its results: attach fox", cluster=True),
    "logs": _Word("its log: logs fox --node 1 --stream NAME", cluster=True),
    "interrupt": _Word("interrupt the cell that runs there", cluster=True),
    "keep": _Word("keep it so long when idle: keep 30m, keep fox 2h", cluster=True),
    "defaults": _Word("flags for every cell of this notebook: defaults -p gpu -A lab; defaults --clear", _ASK - {"gpus"}),
    "doctor": _Word("what works from here"),
    "connect": _Word("use Ray from ordinary cells", cluster=True, later=True),
    "vars": _Word("this notebook's variables on the cluster", cluster=True),
    "fetch": _Word("bring variables here, whatever their size: fetch losses,model; fetch losses fox", cluster=True),
    "reset": _Word("forget this notebook's variables on the cluster, and end the ranks of its --spmd cells", cluster=True),
}
_ALIASES = {"stop": "down", "ls": "list"}


def parse_cell_line(
    line: str,
    names: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> CellOptions:
    """The line of a ``%%gpujob`` cell; ``{name}`` is taken from ``names``, ``--env NAME`` from ``environ``. Raises `UsageError`."""
    given, rest = read(split(line), names or {}, None)
    if rest:
        word = _ALIASES.get(rest[0], rest[0])
        if word in _VERBS:
            raise UsageError(f"%%gpujob runs a cell; {rest[0]!r} is for a line of its own", hint=f"one %: %gpujob {rest[0]}")
        raise UsageError(f"{rest[0]!r} is not a flag", hint="flags come on this line, code on the next: %%gpujob --gpus 4")
    return cell_options({**(defaults or {}), **given}, environ or {})


def parse_verb(
    line: str,
    names: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Verb:
    """A ``%gpujob`` line. Raises `UsageError`."""
    words = split(line)
    if not words:
        return Verb("")
    if words[0].startswith("-"):
        raise UsageError(
            "%gpujob takes a verb first", hint=f"%gpujob up {line.strip()} asks for a cluster; %%gpujob (two %) runs a cell on one"
        )
    name = _ALIASES.get(words[0], words[0])
    if name not in _VERBS:
        close = difflib.get_close_matches(words[0], [*_VERBS, *_ALIASES], 1)
        raise UsageError(f"%gpujob knows no {words[0]!r}", hint=f"%gpujob {close[0]}" if close else f"one of: {', '.join(_VERBS)}")
    verb = _VERBS[name]
    if verb.later:
        raise UsageError(f"%gpujob {name} is not possible in this version yet", hint="%gpujob list shows your clusters")
    tail, extra = _own_flags(name, words[1:])
    given, rest = read(tail, names or {}, (name, verb.takes, verb.help))
    if name == "keep" and rest and rest[-1][:1].isdigit():
        extra["duration_s"] = parse_duration(rest.pop())
    if name == "fetch":
        if not rest:
            raise UsageError("fetch what?", hint="%gpujob fetch losses; %gpujob vars shows what is there")
        extra["names"] = variables(rest.pop(0))
    if len(rest) > int(verb.cluster):
        raise UsageError(f"%gpujob {name} does not take {rest[-1]!r}", hint=verb.help)
    merged = given if name == "defaults" else {**{key: value for key, value in (defaults or {}).items() if key in verb.takes}, **given}
    return Verb(name, rest[0] if rest else None, cell_options(merged, environ or {}), given, **extra)


def help_text() -> str:
    """What ``%%gpujob?`` shows."""
    verbs = [f"  {name:10} {verb.help}" for name, verb in _VERBS.items() if not verb.later]
    return "\n".join(
        [
            "Run this cell on GPUs that are granted together or not at all.",
            "",
            "    %%gpujob --gpus 4 -t 30m",
            "    losses = train(config)",
            "",
            "Names that the cell reads travel there, names that it assigns or changes come back, and the GPUs are given back",
            "when it succeeds. If it raises, they are held for a while, so that a mended cell runs again at once.",
            *usage_lines(),
            "",
            "On a line of its own: %gpujob VERB (without a verb: my clusters and what is free)",
            *verbs,
        ]
    )


def _own_flags(name: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The few flags that only one verb has."""
    rest: list[str] = []
    extra: dict[str, Any] = {}
    own = {"logs": {"--node": "node", "--stream": "stream"}, "defaults": {"--clear": "clear"}}.get(name, {})
    feed = iter(words)
    for word in feed:
        head, equals, value = word.partition("=")
        if head not in own:
            rest.append(word)
        elif own[head] == "clear":
            extra["clear"] = True
        else:
            value = value if equals else next(feed, "")
            if not value or (own[head] == "node" and not value.isdigit()):
                raise UsageError(f"{head} needs a value", hint=_VERBS[name].help)
            extra[own[head]] = int(value) if own[head] == "node" else value
    return rest, extra

"""What the user typed after ``%%gpujob`` or ``%gpujob``, understood or refused. Pure."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.jupyter.flags import FLAGS, HABITS, Flag, usage_lines
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.units import parse_duration

_BRACES = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class CellOptions:
    """One ``%%gpujob`` line. ``spec`` is None where no resources were named: then a cluster must be held already."""

    spec: ClusterSpec | None = None
    backend: str | None = None  # None: the configured one
    on: str | None = None
    new: bool = False
    keep_s: int | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None  # None: whatever the cell assigns or changes
    max_ship_bytes: int | None = None
    dry_run: bool = False


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


@dataclass(frozen=True, slots=True)
class _Word:
    help: str
    takes: frozenset[str] = frozenset()  # keys of flags
    cluster: bool = False  # may name a cluster
    later: bool = False


_CELL_ONLY = frozenset({"on", "new", "inputs", "outputs", "max_ship", "dry_run"})
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
    "vars": _Word("variables on the cluster", cluster=True, later=True),
    "fetch": _Word("bring a variable back", cluster=True, later=True),
    "reset": _Word("forget the variables on the cluster", cluster=True, later=True),
}
_ALIASES = {"stop": "down", "ls": "list"}


def parse_cell_line(
    line: str,
    names: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> CellOptions:
    """The line of a ``%%gpujob`` cell; ``{name}`` is taken from ``names``, ``--env NAME`` from ``environ``. Raises `UsageError`."""
    given, rest = _read(_split(line), names or {}, None)
    if rest:
        word = _ALIASES.get(rest[0], rest[0])
        if word in _VERBS:
            raise UsageError(f"%%gpujob runs a cell; {rest[0]!r} is for a line of its own", hint=f"one %: %gpujob {rest[0]}")
        raise UsageError(f"{rest[0]!r} is not a flag", hint="flags come on this line, code on the next: %%gpujob --gpus 4")
    return _options({**(defaults or {}), **given}, environ or {})


def parse_verb(
    line: str,
    names: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Verb:
    """A ``%gpujob`` line. Raises `UsageError`."""
    words = _split(line)
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
    given, rest = _read(tail, names or {}, (name, verb.takes))
    if name == "keep" and rest and rest[-1][:1].isdigit():
        extra["duration_s"] = parse_duration(rest.pop())
    if len(rest) > int(verb.cluster):
        raise UsageError(f"%gpujob {name} does not take {rest[-1]!r}", hint=verb.help)
    merged = given if name == "defaults" else {**{key: value for key, value in (defaults or {}).items() if key in verb.takes}, **given}
    return Verb(name, rest[0] if rest else None, _options(merged, environ or {}), given, **extra)


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


def _split(line: str) -> list[str]:
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


def _read(
    words: Sequence[str], names: Mapping[str, object], verb: tuple[str, frozenset[str]] | None
) -> tuple[dict[str, object], list[str]]:
    """(values by key, words that belong to no flag)."""
    given: dict[str, object] = {}
    rest: list[str] = []
    feed = iter(words)
    for word in feed:
        if not word.startswith("-") or word == "-":
            rest.append(_expand(word, names))
            continue
        flag, typed, value = _find(word)
        if verb is not None and flag.key not in verb[1]:
            raise UsageError(f"{typed} has no meaning for %gpujob {verb[0]}", hint=_VERBS[verb[0]].help)
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


def _options(given: Mapping[str, Any], environ: Mapping[str, str]) -> CellOptions:
    kind, gpus = given.get("gpus", (None, None))
    if kind and given.get("gpu_type") not in (None, kind):
        raise UsageError(f"--gpus {kind}:{gpus} and --gpu-type {given['gpu_type']} disagree", hint="name the type once")
    if given.get("on") and given.get("new"):
        raise UsageError("--on names a cluster that is there, --new asks for another", hint="keep one of the two")
    nodes, per_node = given.get("nodes"), given.get("gpus_per_node")
    if gpus is None and nodes and per_node:
        gpus = nodes * per_node  # the third follows
    spec = None
    if gpus is not None:
        spec = ClusterSpec(
            gpus=gpus,
            nodes=nodes,
            gpus_per_node=per_node,
            gpu_type=kind or given.get("gpu_type"),
            cpus_per_node=given.get("cpus"),
            mem_per_node_bytes=given.get("mem"),
            time_s=given.get("time"),
            queue=given.get("queue"),
            account=given.get("account"),
            qos=given.get("qos"),
            priority=given.get("priority", 0),
            image=given.get("image"),
            env=tuple(_env(text, environ) for text in given.get("env", ())),
            working_dir=given.get("working_dir"),
            label=given.get("label"),
        )
    elif nodes or per_node:
        raise UsageError("how many GPUs?", hint=f"--gpus is never guessed: add --gpus N{' (a multiple of ' + str(nodes or per_node) + ')'}")
    return CellOptions(
        spec=spec,
        backend=given.get("backend"),
        on=given.get("on"),
        new=given.get("new", False),
        keep_s=given.get("keep"),
        inputs=given.get("inputs", ()),
        outputs=given.get("outputs"),
        max_ship_bytes=given.get("max_ship"),
        dry_run=given.get("dry_run", False),
    )


def _env(text: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in environ:
        raise UsageError(f"--env {name}: the kernel has no environment variable of that name", hint=f"--env {name}=value")
    return name, environ[name]

"""Handle: all that is needed to find a cluster again from any process."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Self

UID_LENGTH = 12
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?")

# Short, easy to say and to tell apart; a name is for people, the uid is for machines.
_WORDS = (
    "fox owl elk bee ant cod eel emu gnu jay koi ram yak bat cat crow deer dove duck frog goat hare hawk ibex kite lark lion lynx "
    "mole moth newt orca puma seal swan tern toad vole wasp wolf wren bison camel crane eagle egret finch gecko goose heron horse "
    "hyena koala lemur llama moose mouse otter panda quail raven robin shark skunk sloth snail stork tapir tiger trout viper whale "
    "zebra "
)
_NAMES = tuple(_WORDS.split())


@dataclass(frozen=True, slots=True, order=True)
class Handle:
    """Backend, cluster uid and name. The uid is made before anything is submitted and travels as label or job name."""

    backend: str
    uid: str
    name: str

    @classmethod
    def new(cls, backend: str, taken: frozenset[str] | set[str] = frozenset(), label: str | None = None) -> Self:
        """A fresh uid, and a name that is not in ``taken``: the label itself, else an animal, with a number if need be."""
        uid = secrets.token_hex(UID_LENGTH // 2)
        base = as_name(label) if label else secrets.choice([name for name in _NAMES if name not in taken] or _NAMES)
        name, number = base, 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        return cls(backend, uid, name)


def as_name(label: str) -> str:
    """A label made into a cluster name (a DNS label of at most 30 characters): ``"Résumé 7B!"`` → ``"r-sum-7b"``."""
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:30].strip("-")
    return name if _NAME.fullmatch(name) else "cluster"

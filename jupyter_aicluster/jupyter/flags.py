"""The flags of ``%%gpujob``: one table for the parser, the help text and the suggestions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.units import parse_duration, parse_size


class Group(StrEnum):
    NEED = "What the cluster must have (met or refused)"
    ROUTE = "How to get it (skipped with one line where a backend does not know it)"
    CELL = "The cell"


@dataclass(frozen=True, slots=True)
class Flag:
    """``key`` is the name of the value; ``value`` how it looks in the help ("" = a switch); ``later``: understood, not possible yet."""

    names: tuple[str, ...]
    key: str
    value: str
    help: str
    group: Group
    read: Callable[[str], object] = str
    many: bool = False  # may be repeated; the values are collected
    later: bool = False

    @property
    def name(self) -> str:
        """The spelling used in messages."""
        return self.names[-1]


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"{text!r} is not a whole number of at least 1", hint="a number like 8, or {name} for the value of a variable")
    return int(text)


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{text!r} is not a whole number", hint="a number like 2; 0 for none")
    return int(text)


def _number(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise UsageError(f"{text!r} is not a whole number", hint="a number like 10")
    return int(text)


def _gpus(text: str) -> tuple[str | None, int]:
    """``16``, or Slurm's ``h100:16``."""
    kind, colon, count = text.rpartition(":")
    if colon and not kind:
        raise UsageError(f"{text!r} names no GPU type", hint="--gpus 16 or --gpus h100:16")
    return kind or None, _count(count)


def _word(text: str) -> str:
    if not text.strip() or any(ord(char) < 32 for char in text):
        raise UsageError(f"{text!r} is empty or has control characters in it", hint="write a name")
    return text


def variables(text: str) -> tuple[str, ...]:
    """``a,b``. Raises `UsageError` for what is no name of a variable."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not name.isidentifier():
            raise UsageError(f"{name!r} is not the name of a variable", hint="names separated by commas: --in config,model")
    return names


def _per(text: str) -> str:
    if text not in ("gpu", "node"):
        raise UsageError(f"{text!r} is neither gpu nor node", hint="--per node for one process on each machine")
    return text


def _env(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", text.partition("=")[0], re.ASCII):
        raise UsageError(
            f"{text.partition('=')[0]!r} is not the name of an environment variable", hint="--env NAME=value, or --env NAME to copy yours"
        )
    return text


_FLAGS = (
    Flag(("--gpus",), "gpus", "N", "GPUs, all together or none; h100:16 also names the type", Group.NEED, _gpus),
    Flag(("-N", "--nodes"), "nodes", "N", "machines to spread them over evenly", Group.NEED, _count),
    Flag(("--gpus-per-node",), "gpus_per_node", "N", "GPUs on each machine", Group.NEED, _count),
    Flag(("--gpu-type",), "gpu_type", "TYPE", "for example h100", Group.NEED, _word),
    Flag(("-c", "--cpus"), "cpus", "N", "CPUs on each machine", Group.NEED, _count),
    Flag(("--mem",), "mem", "SIZE", "memory on each machine: 64G", Group.NEED, parse_size),
    Flag(
        ("-t", "--time"),
        "time",
        "TIME",
        "at most so long, counted from when all have joined: 30m, 2:00:00, 90 (minutes)",
        Group.NEED,
        parse_duration,
    ),
    Flag(
        ("--env",),
        "env",
        "K=V|K",
        "environment variable of the cell; K alone copies the kernel's without writing it down",
        Group.NEED,
        _env,
        many=True,
    ),
    Flag(("--pip",), "pip", "PKG", "package the cell needs on top", Group.NEED, _word, many=True, later=True),
    Flag(("--working-dir",), "working_dir", "DIR", "folder the cell runs in; default: the notebook's", Group.NEED, _word),
    Flag(("--backend",), "backend", "NAME", "auto, local, slurm or kubernetes", Group.ROUTE, _word),
    Flag(("--profile",), "profile", "NAME", "settings prepared by your administrator", Group.ROUTE, _word, later=True),
    Flag(("-p", "--partition", "--queue"), "queue", "NAME", "partition or queue", Group.ROUTE, _word),
    Flag(("-A", "--account"), "account", "NAME", "account to charge", Group.ROUTE, _word),
    Flag(("--qos",), "qos", "NAME", "quality of service", Group.ROUTE, _word),
    Flag(("--priority",), "priority", "P", "higher goes first among your own requests", Group.ROUTE, _number),
    Flag(("-J", "--label"), "label", "LABEL", "the cluster's name; default: an animal", Group.ROUTE, _word),
    Flag(("--image",), "image", "IMAGE", "container image", Group.ROUTE, _word),
    Flag(("--on",), "on", "NAME", "run on this cluster", Group.CELL, _word),
    Flag(("--new",), "new", "", "ask for a new cluster even if one that you hold would do", Group.CELL),
    Flag(("--keep",), "keep", "TIME", "keep the GPUs until nothing has used them for so long", Group.CELL, parse_duration),
    Flag(("--in",), "inputs", "a,b", "send these names too, also where the cluster has its own", Group.CELL, variables, many=True),
    Flag(("--out",), "outputs", "a,b", "bring back only these names", Group.CELL, variables, many=True),
    Flag(("--max-ship",), "max_ship", "SIZE", "refuse inputs above this size: 4G", Group.CELL, parse_size),
    Flag(("--dry-run",), "dry_run", "", "show what would be submitted, and submit nothing", Group.CELL),
    Flag(
        ("--spmd",), "spmd", "", "run the cell once per GPU, in processes that torch.distributed, JAX and Accelerate can join", Group.CELL
    ),
    Flag(("--per",), "per", "gpu|node", "with --spmd: one process per GPU or per node", Group.CELL, _per),
    Flag(
        ("--gather",),
        "gather",
        "a,b",
        "with --spmd: bring these names back as lists by rank; others come from rank 0",
        Group.CELL,
        variables,
        many=True,
    ),
    Flag(("--detach",), "detach", "", "return at once", Group.CELL, later=True),
    Flag(
        ("--retries",),
        "retries",
        "N",
        "start again so often when a node falls; default: 2 for jobs, 0 where GPUs are kept",
        Group.CELL,
        _natural,
    ),
    Flag(("--max-wait",), "max_wait", "TIME", "give up waiting in the queue after so long", Group.CELL, parse_duration, later=True),
    Flag(("--resume",), "resume", "NAME", "go on from the checkpoints of an earlier run", Group.CELL, later=True),
    Flag(("--on-disconnect",), "on_disconnect", "stop|run", "what happens when every client is gone", Group.CELL, later=True),
    Flag(("--dask",), "dask", "", "compute Dask collections on the cluster", Group.CELL, later=True),
)
FLAGS = {name: flag for flag in _FLAGS for name in flag.names}

# What people's fingers know from other tools → what to write here.
HABITS = {
    "--gres": "--gpus 4, or --gpus h100:4",
    "-G": "--gpus 4",
    "--num-gpus": "--gpus 4",
    "--ngpus": "--gpus 4",
    "-g": "--gpus 4",
    "-n": "--gpus 16 --spmd for one process per GPU, or -N 2 for two machines",
    "--ntasks": "--gpus 16 --spmd: one process per GPU",
    "--ntasks-per-node": "--gpus-per-node 8 --spmd: one process per GPU",
    "--gpus-per-task": "--gpus 16: the number of GPUs in all",
    "--nproc-per-node": "--gpus-per-node 8 --spmd",
    "--nnodes": "-N 2",
    "--num-nodes": "-N 2",
    "--num-cpus": "-c 8: CPUs on each machine",
    "--cpus-per-task": "-c 8: CPUs on each machine",
    "--mem-per-cpu": "--mem 64G: memory on each machine",
    "--mem-per-gpu": "--mem 64G: memory on each machine",
    "--job-name": "-J NAME",
    "--name": "-J NAME",
    "--namespace": "--queue NAME",
    "-q": "--qos NAME, or --queue NAME for a partition or queue",
    "--timeout": "-t 2:00:00",
    "--walltime": "-t 2:00:00",
    "-l": "--gpus 4 -t 2:00:00",
    "-i": "--in a,b",
    "-o": "--out a,b",
    "-w": "--working-dir DIR",
    "--exclusive": "--gpus-per-node with all of a machine's GPUs",
}


def usage_lines() -> list[str]:
    """The table, for people."""
    lines = []
    for group in Group:
        lines += ["", group.value]
        for flag in (flag for flag in _FLAGS if flag.group is group and not flag.later):
            lines.append(f"  {', '.join(flag.names) + (' ' + flag.value if flag.value else ''):36} {flag.help}")
    planned = " ".join(flag.name for flag in _FLAGS if flag.later)
    return [*lines, "", f"Understood but not possible in this version: {planned}"]

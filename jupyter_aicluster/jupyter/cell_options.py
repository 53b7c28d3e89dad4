"""What one ``%%gpujob`` line asks for, put together from the values of its flags. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.spec import ClusterSpec


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
    retries: int | None = None  # None: as configured for jobs, 0 for clusters that are kept
    dry_run: bool = False
    spmd: str = ""  # "gpu" | "node": once in each rank
    gather: tuple[str, ...] = ()


def cell_options(given: Mapping[str, Any], environ: Mapping[str, str]) -> CellOptions:
    """From values by key of the flags table; ``--env NAME`` is taken from ``environ``. Raises `UsageError`."""
    kind, gpus = given.get("gpus", (None, None))
    if kind and given.get("gpu_type") not in (None, kind):
        raise UsageError(f"--gpus {kind}:{gpus} and --gpu-type {given['gpu_type']} disagree", hint="name the type once")
    if given.get("on") and given.get("new"):
        raise UsageError("--on names a cluster that is there, --new asks for another", hint="keep one of the two")
    for flag in ("per", "gather"):
        if given.get(flag) and not given.get("spmd"):
            raise UsageError(f"--{flag} is about the ranks of an --spmd cell", hint=f"add --spmd, or leave --{flag} out")
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
        retries=given.get("retries"),
        max_ship_bytes=given.get("max_ship"),
        dry_run=given.get("dry_run", False),
        spmd=given.get("per", "gpu") if given.get("spmd") else "",
        gather=given.get("gather", ()),
    )


def _env(text: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in environ:
        raise UsageError(f"--env {name}: the kernel has no environment variable of that name", hint=f"--env {name}=value")
    return name, environ[name]

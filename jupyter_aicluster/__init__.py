"""GPU gangs for notebook cells: from Slurm, Kubernetes or this machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_aicluster import job
    from jupyter_aicluster.cluster import Cluster
    from jupyter_aicluster.spec import ClusterSpec

__all__ = ["Cluster", "ClusterSpec", "job", "load_ipython_extension"]

# Imported at first use: the agent and `%load_ext` pay for nothing they do not need.
_HOMES = {"ClusterSpec": "jupyter_aicluster.spec"}


def _configured() -> Any:
    """The options in the configuration files and environment: outside the core, which reads neither."""
    return import_module("jupyter_aicluster.jupyter.config").options()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "Cluster":
            cluster = import_module("jupyter_aicluster.cluster")
            cluster.configured = _configured
            return cluster.Cluster
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        if name == "job":
            return import_module("jupyter_aicluster.job")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext jupyter_aicluster``."""
    from jupyter_aicluster.jupyter.magics import load

    load(ipython)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_aicluster.jupyter.extension"}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "jupyter/labextension", "dest": "jupyter-aicluster"}]

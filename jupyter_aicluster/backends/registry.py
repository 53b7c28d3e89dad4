"""Backends by name: the entry points of the group ``jupyter_aicluster.backends``."""

from __future__ import annotations

from importlib.metadata import entry_points

from jupyter_aicluster.backends.base import Backend
from jupyter_aicluster.errors import BackendUnavailable
from jupyter_aicluster.options import Options

GROUP = "jupyter_aicluster.backends"


def names() -> list[str]:
    return sorted({point.name for point in entry_points(group=GROUP)})


def load(name: str, options: Options) -> Backend:
    """Raises `BackendUnavailable` for a name nobody registered, or one whose parts are not installed."""
    for point in entry_points(group=GROUP):
        if point.name != name:
            continue
        try:
            kind: type[Backend] = point.load()
        except ImportError as error:
            raise BackendUnavailable(
                f"the backend {name!r} cannot be loaded", evidence=str(error), hint=f"pip install 'jupyter-aicluster[{name}]'"
            ) from error
        return kind.from_options(options)
    raise BackendUnavailable(f"there is no backend called {name!r}", hint=f"choose one of: {', '.join(names()) or 'none is installed'}")

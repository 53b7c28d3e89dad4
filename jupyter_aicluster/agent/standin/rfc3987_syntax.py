"""A lazy stand-in for ``rfc3987_syntax``, first on a cluster's PYTHONPATH.

Ray imports jsonschema, whose optional URI checker imports rfc3987_syntax where JupyterLab is installed, and that builds
a grammar at import: about 1.5 s of CPU in every Ray process, for a check that none of them makes. This module loads
the real one on first use, and raises ImportError where there is none, as before.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_MARK = "aicluster stand-in for rfc3987_syntax"
_TAKEN_EARLY = "is_valid_syntax"  # what jsonschema does: `from rfc3987_syntax import is_valid_syntax`, long before it calls it
_ASKED = ("__all__", "__version__")  # other names of this kind are probed for by the import system: a probe is no use


def _find() -> importlib.machinery.ModuleSpec | None:
    """The real module's spec: found on the path without the entry that this file came from."""
    for entry in sys.path:
        spec = importlib.machinery.PathFinder.find_spec("rfc3987_syntax", [entry])
        source = getattr(spec and spec.loader, "get_source", lambda name: "")("rfc3987_syntax") or ""
        if spec is not None and _MARK not in source:  # not a stand-in, this one's or another bundle's
            return spec
    return None


_spec = _find()
if _spec is None or _spec.loader is None:
    raise ImportError("No module named 'rfc3987_syntax'", name="rfc3987_syntax")
__path__ = list(_spec.submodule_search_locations or [])  # submodules are imported from the real package


def _load() -> ModuleType:
    """Replace this module in sys.modules by the real one; its names are copied here for whoever already holds this one."""
    assert _spec is not None
    assert _spec.loader is not None
    module = importlib.util.module_from_spec(_spec)
    mine = sys.modules.get(__name__)
    sys.modules[__name__] = module
    try:
        _spec.loader.exec_module(module)
    except BaseException:
        if mine is not None:
            sys.modules[__name__] = mine
        raise
    globals().update({name: value for name, value in vars(module).items() if not name.startswith("__")})
    return module


def _defines(name: str) -> bool:
    """Whether the real module has this function, by its text: running it is what must not happen."""
    return any(f"def {name}(" in path.read_text(errors="replace") for folder in __path__ for path in Path(folder).glob("*.py"))


def __getattr__(name: str) -> object:
    if name == _TAKEN_EARLY and _defines(name):
        return lambda *args, **kwargs: getattr(_load(), name)(*args, **kwargs)
    if name.startswith("__") and name.endswith("__") and name not in _ASKED:
        raise AttributeError(name)
    return getattr(_load(), name)

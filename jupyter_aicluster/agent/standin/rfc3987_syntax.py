"""A lazy stand-in for ``rfc3987_syntax``, first on a cluster's PYTHONPATH.

Ray imports jsonschema, whose optional URI checker imports rfc3987_syntax where JupyterLab is installed, and that builds
a grammar at import: about 1.5 s of CPU in every Ray process, for a check that none of them makes. This module loads
the real one on first use, and raises ImportError where there is none, as before.
"""

import importlib.util
import os
import sys

_HERE = __file__


def _find():
    """The real module's spec: found on the path without the entry that this file came from."""
    mine = [entry for entry in sys.path if entry and os.path.abspath(_HERE).startswith(os.path.abspath(entry) + os.sep)]
    others = [entry for entry in sys.path if entry not in mine]
    return importlib.machinery.PathFinder.find_spec("rfc3987_syntax", others)


_spec = _find()
if _spec is None:
    raise ImportError("No module named 'rfc3987_syntax'")
__path__ = list(_spec.submodule_search_locations or [])  # submodules are imported from the real package


def _load():
    module = importlib.util.module_from_spec(_spec)
    sys.modules["rfc3987_syntax"] = module
    try:
        _spec.loader.exec_module(module)
    except BaseException:
        sys.modules["rfc3987_syntax"] = sys.modules.get("rfc3987_syntax", module)
        raise
    globals().update({name: value for name, value in vars(module).items() if name not in ("__getattr__", "__file__")})
    return module


def __getattr__(name):
    if name.startswith("__") and name.endswith("__") and name != "__all__":
        raise AttributeError(name)  # the import system probes for these; a probe is no use
    return getattr(_load(), name)

"""The agent's bundle: this package's own .py files in one zip, first on a cluster's PYTHONPATH, so no image must be rebuilt."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import zipfile
from io import BytesIO
from pathlib import Path

from jupyter_aicluster.rundir import write_private

_PACKAGE = Path(__file__).parent
_STAND_INS = _PACKAGE / "agent" / "standin"
_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: hash-based, not checked
_DATE = (1980, 1, 1, 0, 0, 0)  # one content, one zip: the digest is its name


def files(package: Path = _PACKAGE) -> list[tuple[str, Path]]:
    """(name in the zip, file): the package below its own name, the stand-ins at the top."""
    inside = sorted(path for path in package.rglob("*.py") if "standin" not in path.parts and "node_modules" not in path.parts)
    return [
        *((str(Path(package.name) / path.relative_to(package)), path) for path in inside),
        *((path.name, path) for path in sorted(_STAND_INS.glob("*.py"))),
    ]


def compiled(name: str, source: bytes) -> bytes:
    """Bytecode that is never checked against its source (the zip holds both, for ever): a process on the cluster then compiles nothing.

    A Python of another version sees another magic number and takes the source.
    """
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code)


def make_bundle(cache: Path) -> Path:
    """The zip, made once per content and Python version in ``cache``."""
    found = [(name, path.read_bytes()) for name, path in files()]
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, data in found:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    target = cache / f"{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        packed = BytesIO()
        with zipfile.ZipFile(packed, "w") as bundle:
            for name, data in found:
                bundle.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
                bundle.writestr(zipfile.ZipInfo(f"{name}c", _DATE), compiled(name, data), zipfile.ZIP_DEFLATED)
        write_private(target, packed.getvalue())
    return target


def place(cache: Path, target: Path) -> None:
    """Put the bundle at ``target``: a hard link where the disk allows it, else a copy."""
    source = make_bundle(cache)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        write_private(target, source.read_bytes())

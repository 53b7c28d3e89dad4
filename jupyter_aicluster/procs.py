"""Processes of one cluster on this machine, found by the mark in their environment (Linux ``/proc``).

A mark survives re-parenting, so a gang's processes are found also after their parents were killed. Only processes of
this user can be read, so nobody else's are ever touched.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from jupyter_aicluster.errors import AIClusterError
from jupyter_aicluster.protocol import Submission

_TMP = Path("/tmp")  # short on purpose: socket paths below it must stay within AF_UNIX's 107 bytes
_AGAIN_S = 0.02


def node_tmp(uid: str, node: int) -> Path:
    """The private temp folder of one node of one cluster."""
    return _TMP / f"aic-{uid}-{node}"


def hub_tmp(uid: str) -> Path:
    """The hub's own disk: journal and logs, before they are copied to storage."""
    return _TMP / f"aic-{uid}-hub"


class TempDirRefused(AIClusterError):
    """A temp folder that cannot be made, or that somebody else has put where ours should be."""


def private_tmp(path: Path) -> Path:
    """Make the folder for this user alone, or take the one this user made before. Raises `TempDirRefused`.

    Its name can be read from our command lines, so another user may have made it first: to read what we write, or to lead it elsewhere.
    """
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if mine:
            path.chmod(0o700)
    except OSError as error:
        raise TempDirRefused(f"the temp folder {path} cannot be made", evidence=str(error), hint="is there room in /tmp?") from error
    if not mine:
        raise TempDirRefused(
            f"{path} is not ours: it belongs to {_user(found.st_uid)}", hint="ask for a new cluster, and whoever that is why"
        )
    return path


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def marked(uid: str, node: int | None = None, also: Mapping[str, str] = MappingProxyType({})) -> list[int]:
    """Pids of living processes (zombies excluded) that carry the cluster's mark, this process excepted.

    ``also``: what else must be in their environment.
    """
    marks = {**also, Submission.UID_ENV: uid} | ({} if node is None else {Submission.NODE_ENV: str(node)})
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    found = []
    for pid in _pids():
        if pid == os.getpid():
            continue
        try:
            environ = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        except OSError:  # ended meanwhile, or somebody else's
            continue
        if wanted <= environ:
            found.append(pid)
    return found


def any_marked(uid: str) -> bool:
    """Whether any marked process is left. No is said after a second look: in the middle of an exec a process shows no environment."""
    if marked(uid):
        return True
    time.sleep(_AGAIN_S)
    return bool(marked(uid))


def kill_marked(uid: str, node: int | None = None, timeout_s: float = 5.0, spare: Callable[[int], bool] = lambda pid: False) -> list[int]:
    """SIGKILL every marked process, again until none is left or ``timeout_s`` passed; returns those still there.

    None left is believed the second time, as in `any_marked`.
    """
    deadline = time.monotonic() + timeout_s
    clean = 0
    while True:
        left = [pid for pid in marked(uid, node) if not spare(pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        clean = 0 if left else clean + 1
        if clean == 2 or time.monotonic() > deadline:
            return left
        time.sleep(_AGAIN_S)


def remove_tmp(uid: str, node: int | None = None) -> None:
    """Remove a node's temp folder, or all of the cluster's on this machine."""
    for path in [node_tmp(uid, node)] if node is not None else _TMP.glob(f"aic-{uid}-*"):
        shutil.rmtree(path, ignore_errors=True)


def start_time(pid: int) -> str | None:
    """When the process began, in the kernel's ticks: with the pid it names one process for ever. None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _pids() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name)

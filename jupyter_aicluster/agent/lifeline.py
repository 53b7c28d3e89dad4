"""A program's lifeline: a pipe on its standard input that its parent holds open. Its end means the parent is gone."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable


def watch_lifeline(gone: Callable[[], None]) -> None:
    """Call ``gone`` in the running loop when standard input, if it is a pipe, reaches its end. Works also after kill -9 of the parent."""
    descriptor = sys.stdin.fileno()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return  # started by hand or by a scheduler that ends us itself
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            gone()

    loop.add_reader(descriptor, readable)

"""One asyncio loop in one background thread per process, started on first use. Nobody's own loop is ever touched."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """``run`` blocks the calling thread, interruptibly; ``start`` does not. Made again in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                # Explicitly asyncio's own: the process may have installed another policy (uvloop) for itself.
                self._loop, self._pid = asyncio.SelectorEventLoop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="aicluster", daemon=True).start()
            return self._loop

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result, or its exception. KeyboardInterrupt cancels the work and is raised at once."""
        future = self.start(work)
        try:
            while True:
                try:
                    return future.result(timeout=0.2)  # in slices: a wait without time-out would not hear Ctrl-C everywhere
                except TimeoutError:
                    if future.done():
                        raise
        except BaseException:
            future.cancel()
            raise


background = BackgroundLoop()

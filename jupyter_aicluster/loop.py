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
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked child neither the thread nor whoever held the lock exists."""
        self._lock, self._loop = threading.Lock(), None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                # Explicitly asyncio's own: the process may have installed another policy (uvloop) for itself.
                self._loop = asyncio.SelectorEventLoop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="aicluster", daemon=True)
                self._thread.start()
            return self._loop

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result, or its exception. KeyboardInterrupt cancels the work and is raised at once.

        RuntimeError when called in the loop's own thread, as by a watcher: it would wait for itself for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of a cluster cannot wait for the cluster: start a thread for it")
        future = self.start(work)
        try:
            while True:
                try:
                    return future.result(timeout=0.2)  # in slices: a wait without time-out would not hear Ctrl-C everywhere
                except TimeoutError:
                    if future.done():  # its own, or it came to its end in this moment
                        return future.result()
        except BaseException:
            future.cancel()
            raise


background = BackgroundLoop()

"""The one background loop: results, exceptions, Ctrl-C, forks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import Future

import pytest

from jupyter_aicluster.loop import BackgroundLoop


async def where() -> tuple[str, asyncio.AbstractEventLoop]:
    return threading.current_thread().name, asyncio.get_running_loop()


async def fail(error: BaseException) -> None:
    raise error


@pytest.fixture(scope="module")
def loop() -> BackgroundLoop:
    return BackgroundLoop()


def test_one_thread_one_loop_whoever_asks(loop: BackgroundLoop) -> None:
    found: list[tuple[str, asyncio.AbstractEventLoop]] = []
    threads = [threading.Thread(target=lambda: found.append(loop.run(where()))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(found) == 5
    assert set(found) == {loop.run(where())}
    assert found[0][0] == "aicluster"


@pytest.mark.parametrize("error", [ValueError("mine"), TimeoutError("mine"), KeyError("mine")])
def test_its_exceptions_are_the_callers_also_a_time_out(loop: BackgroundLoop, error: Exception) -> None:
    with pytest.raises(type(error), match="mine"):
        loop.run(fail(error))


async def test_it_may_be_waited_for_while_a_loop_runs_here(loop: BackgroundLoop) -> None:
    """In a notebook the kernel's loop runs: nobody nests it."""
    _, other = loop.run(where())
    assert other is not asyncio.get_running_loop()


def test_ctrl_c_cancels_the_work_and_is_raised(loop: BackgroundLoop) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def press() -> None:
        begun.wait(5)
        time.sleep(0.05)  # until the main thread waits
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert cancelled.wait(5)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own(loop: BackgroundLoop) -> None:
    loop.run(where())
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if loop.run(where())[0] == "aicluster" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_waiting_for_the_loop_in_its_own_thread_is_refused_at_once(loop: BackgroundLoop) -> None:
    async def nested() -> object:
        return loop.run(where())

    with pytest.raises(RuntimeError, match="cannot wait"):
        loop.run(nested())


def test_a_result_that_comes_as_a_slice_ends_is_the_result(loop: BackgroundLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if not self.done():
                self.set_result(7)
                raise TimeoutError
            return super().result(timeout)

    async def seven() -> int:
        return 7

    monkeypatch.setattr(loop, "start", lambda work: work.close() or Late())
    assert loop.run(seven()) == 7


def test_a_fork_while_the_lock_is_held_does_not_hang(loop: BackgroundLoop) -> None:
    loop.run(where())
    with loop._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if loop.run(where())[0] == "aicluster" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""Settings of all tests."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard() -> None:
    """A test run started in the background inherits an ignored SIGINT, which Python then leaves ignored; a kernel's is not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

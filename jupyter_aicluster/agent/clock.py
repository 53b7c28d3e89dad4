"""The hub's clock: Unix seconds that never jump, whatever happens to the machine's date."""

from __future__ import annotations

import time
from collections.abc import Callable


def steady_clock() -> Callable[[], float]:
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset

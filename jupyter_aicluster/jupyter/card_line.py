"""Clicks that reach the kernel while a cell blocks: a subshell of our own (ipykernel ≥ 7.4), found by looking, never assumed.

Two private names are used, both looked for first: ``kernel._supports_kernel_subshells`` and ``comm._reply_subshell_for``.
"""

from __future__ import annotations

import functools
import queue
import time
from pathlib import Path
from typing import Any, Literal

Line = Literal["own subshell", "front end's subshell", "none"]


def open_line(widget: Any, kernel: Any, timeout_s: float = 5.0) -> Line:
    """Let the kernel handle this widget's messages while a cell blocks; the answer is the way found.

    "front end's subshell": only where the front end asks for one. "none": a click waits for the cell, so there must be none.
    The handler runs in another thread than the cell.
    """
    if not getattr(kernel, "_supports_kernel_subshells", False):  # plain IPython, ipykernel < 7
        return "none"
    if not hasattr(widget.comm, "_reply_subshell_for"):  # ipykernel 7.0 - 7.3: no hook, and no pinning to undo
        return "front end's subshell"
    subshell_id = _subshell(timeout_s)
    if subshell_id is None:
        return "none"
    # ipykernel ≥ 7.4 asks this, in its shell channel's thread, where a comm message goes.
    widget.comm._reply_subshell_for = lambda data, default: subshell_id
    return "own subshell"


@functools.cache  # one for all cards; it lives as long as the kernel
def _subshell(timeout_s: float) -> str | None:
    """Ask our own kernel for a subshell, by the public protocol on its control channel."""
    from ipykernel.connect import get_connection_file
    from jupyter_client import BlockingKernelClient

    client = BlockingKernelClient(connection_file=get_connection_file())
    client.load_connection_file()
    client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
    try:
        request = client.session.msg("create_subshell_request", {})
        client.control_channel.send(request)
        deadline = time.monotonic() + timeout_s
        while True:
            reply = client.get_control_msg(timeout=max(0.0, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                subshell_id = reply["content"].get("subshell_id")
                return str(subshell_id) if subshell_id else None
    except queue.Empty:
        return None
    finally:
        client.stop_channels()


def kernel_id(kernel: Any) -> str | None:
    """The server's id of this kernel, for Jupyter's own interrupt route; None outside a Jupyter server."""
    if kernel is None:
        return None
    from ipykernel.connect import get_connection_file

    stem = Path(get_connection_file()).stem
    return stem.removeprefix("kernel-") if stem.startswith("kernel-") else None

"""The GPUs of one node as their readers see them: what they are, and the newest reading of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from jupyter_aicluster.protocol import GpuInfo, GpuSample

PERIOD_S = 1.0
SILENT_S = 5.0  # a reader that says nothing for so long hangs in the driver: its readings are old and it is replaced
BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)


class GpuReader(Protocol):
    """Real GPUs (`Gpus`) or simulated ones (`simgpus.SimulatedGpus`)."""

    def start(self) -> None: ...
    def close(self) -> None: ...
    def infos(self) -> list[GpuInfo]: ...
    def sample(self) -> list[GpuSample]: ...


class Gpus:
    """Real GPUs, read at 1 Hz in a child process. `infos` and `sample` return at once and always name every entry.

    ``entries`` is CUDA_VISIBLE_DEVICES, split, opaque. A reader that hangs or crashes costs the readings, never the caller.
    """

    def __init__(
        self,
        entries: Sequence[str],
        *,
        command: Sequence[str] = (sys.executable, "-P", "-m", "jupyter_aicluster.agent.nvml"),
        period_s: float = PERIOD_S,
        silent_s: float = SILENT_S,
        backoff_s: Sequence[float] = BACKOFF_S,
    ) -> None:
        self._command = command
        self._period_s, self._silent_s, self._backoff_s = period_s, silent_s, backoff_s
        self._uuids: dict[str, str | None] = dict.fromkeys(entries)
        self._infos = {entry: GpuInfo(entry, "") for entry in entries}
        self._samples: dict[str, GpuSample] = {}
        self._heard_s = 0.0
        self._closed = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []
        self.problem = ""  # why there are no readings, in NVML's words

    def start(self) -> None:
        for work in (self._read, self._guard):
            thread = threading.Thread(target=work, name="gpu-reader", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        self._closed.set()
        self._kill()
        for thread in self._threads:
            thread.join(timeout=5)

    def infos(self) -> list[GpuInfo]:
        return list(self._infos.values())

    def sample(self) -> list[GpuSample]:
        fresh = time.monotonic() - self._heard_s < self._silent_s
        return [self._samples.get(entry, GpuSample(entry)) if fresh else GpuSample(entry) for entry in self._infos]

    def _read(self) -> None:
        failures = 0
        while not self._closed.is_set():
            watched = json.dumps(list(self._uuids.items()))
            self._heard_s, self._samples = time.monotonic(), {}
            try:
                process = subprocess.Popen(
                    [*self._command, "--watch", watched, str(self._period_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            except OSError as error:
                self.problem = str(error)
            else:
                with process:
                    self._process = process
                    if self._closed.is_set():  # closed between the loop's look and here
                        self._kill()
                    failures = 0 if self._listen(process) else failures
                    self._kill()
            self._closed.wait(self._backoff_s[min(failures, len(self._backoff_s) - 1)])
            failures += 1

    def _listen(self, process: subprocess.Popen[bytes]) -> bool:
        """Take in what a reader prints until it ends; whether it ever gave a reading."""
        heard = False
        for line in process.stdout or ():
            with suppress(ValueError):  # a line cut off by its death
                heard = self._take(json.loads(line)) or heard
        return heard

    def _take(self, message: dict[str, Any]) -> bool:
        self._heard_s = time.monotonic()
        self.problem = str(message.get("problem", ""))
        for info in message.get("infos", ()):
            if info["uuid"] is not None:
                self._uuids[info["index"]] = info["uuid"]
                self._infos[info["index"]] = GpuInfo.from_json(info)
        if "samples" in message:
            self._samples = {sample["index"]: GpuSample.from_json(sample) for sample in message["samples"]}
        return "samples" in message

    def _guard(self) -> None:
        while not self._closed.wait(self._silent_s / 5):
            if time.monotonic() - self._heard_s > self._silent_s:
                self._kill()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()


def visible_entries() -> list[str]:
    """CUDA_VISIBLE_DEVICES of this process as Ray counts it: by comma, empty and ``NoDevFiles`` are none."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [] if text in ("", "-1", "NoDevFiles") else [entry.strip() for entry in text.split(",")]

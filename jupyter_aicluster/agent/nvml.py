"""NVML by ctypes, and the small program that reads it in a process of its own, because an NVML call may hang or crash.

``python -m jupyter_aicluster.agent.nvml --list`` prints what this machine has; ``--watch '[["0", null], …]'`` prints one line of
samples a second until its standard input ends. Needs no package: the driver's library is all there is to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_LOST = (15, 16)  # GPU_IS_LOST, RESET_REQUIRED
_MISSING = -1  # the library has no such function
_TEXT_BYTES = 96


class NvmlError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Device:
    """A whole GPU or a MIG instance. ``parent`` is the whole GPU's index."""

    handle: ctypes.c_void_p
    parent: int
    uuid: str
    name: str
    mem_total_bytes: int | None
    mig: str = ""  # "GPU instance/compute instance" of a MIG device, as old drivers write them
    split: bool = False  # a whole GPU that is divided into MIG instances


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """Raises `NvmlError` where there is no library, no driver, or a broken pair of them."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NvmlError(_MISSING, f"{LIBRARY} is not installed") from error
        self._call("nvmlInit_v2")

    def devices(self) -> list[Device]:
        """Whole GPUs, each followed by its MIG instances. A GPU that cannot be opened is left out."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._can("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
                instances = self._instances(index, handle)
                found += [self._device(handle, index, split=bool(instances)), *instances]
        return found

    def sample(self, device: Device) -> dict[str, Any]:
        """Keys of `protocol.GpuSample` but the index. What cannot be read is None: never 0, and never an error."""
        lost = False

        def read(name: str, *args: Any) -> bool:
            nonlocal lost
            try:
                self._call(name, device.handle, *args)
            except NvmlError as error:
                lost = lost or error.code in _LOST
                return False
            return True

        memory, rates, milliwatts, celsius = _Memory(), (ctypes.c_uint * 2)(), ctypes.c_uint(), ctypes.c_uint()
        has_memory = read("nvmlDeviceGetMemoryInfo", ctypes.byref(memory))
        has_rates = not (device.mig or device.split) and read("nvmlDeviceGetUtilizationRates", rates)  # a MIG parent's 0 % means nothing
        has_power = not device.mig and read("nvmlDeviceGetPowerUsage", ctypes.byref(milliwatts))
        has_celsius = not device.mig and read("nvmlDeviceGetTemperature", 0, ctypes.byref(celsius))
        return {
            "util_percent": float(rates[0]) if has_rates else None,
            "mem_used_bytes": memory.used if has_memory else None,
            "power_w": milliwatts.value / 1000 if has_power else None,
            "temp_c": float(celsius.value) if has_celsius else None,
            "lost": lost,
        }

    def _instances(self, index: int, handle: ctypes.c_void_p) -> list[Device]:
        current, pending, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
            if not current.value:
                return []
            self._call("nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(most))
        except NvmlError:  # most GPUs have no MIG
            return []
        found = []
        for place in range(most.value):
            instance, gi, ci = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
            try:
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, place, ctypes.byref(instance))
                self._call("nvmlDeviceGetGpuInstanceId", instance, ctypes.byref(gi))
                self._call("nvmlDeviceGetComputeInstanceId", instance, ctypes.byref(ci))
            except NvmlError:  # an unused place
                continue
            found.append(self._device(instance, index, mig=f"{gi.value}/{ci.value}"))
        return found

    def _device(self, handle: ctypes.c_void_p, parent: int, *, mig: str = "", split: bool = False) -> Device:
        memory = _Memory()
        known = self._can("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        name, uuid = self._text("nvmlDeviceGetName", handle), self._text("nvmlDeviceGetUUID", handle)
        return Device(handle, parent, uuid, name, memory.total if known else None, mig, split)

    def _text(self, name: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        return buffer.value.decode(errors="replace") if self._can(name, handle, buffer, _TEXT_BYTES) else ""

    def _can(self, name: str, *args: Any) -> bool:
        try:
            self._call(name, *args)
        except NvmlError:
            return False
        return True

    def _call(self, name: str, *args: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:  # an old library
            raise NvmlError(_MISSING, f"{LIBRARY} has no {name}") from error
        if code := function(*args):
            describe = self._library.nvmlErrorString
            describe.restype = ctypes.c_char_p
            raise NvmlError(code, describe(code).decode(errors="replace"))


def visible(devices: Sequence[Device], entries: str | None) -> list[tuple[str, Device | None]]:
    """The entries of CUDA_VISIBLE_DEVICES with what they name; None where NVML knows no such GPU. No variable: everything.

    Entries are opaque: an index, the beginning of a UUID, a MIG UUID in either form. Like CUDA, reading stops at ``-1``.
    """
    if entries is None:
        return [(device.uuid if device.mig else str(device.parent), device) for device in devices if not device.split]
    found = []
    for entry in entries.split(","):
        word = entry.strip()
        if word in ("", "-1", "NoDevFiles", "none", "void"):
            break
        found.append((word, find(devices, word)))
    return found


def find(devices: Sequence[Device], entry: str) -> Device | None:
    whole = [device for device in devices if not device.mig]
    if entry.isdecimal():
        return next((device for device in whole if device.parent == int(entry)), None)
    if entry.startswith("MIG-GPU-"):  # MIG-GPU-UUID/gi/ci, drivers before R470
        uuid, _, instance = entry.removeprefix("MIG-").partition("/")
        parents = {device.parent for device in whole if device.uuid == uuid}
        return next((device for device in devices if device.mig == instance and device.parent in parents), None)
    named = [device for device in devices if device.uuid and device.uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None


def info(entry: str, device: Device | None) -> dict[str, Any]:
    if device is None:
        return {"index": entry, "name": "", "mem_total_bytes": None, "uuid": None}
    return {"index": entry, "name": device.name, "mem_total_bytes": device.mem_total_bytes, "uuid": device.uuid}


def watch(entries: Sequence[tuple[str, str | None]], period_s: float) -> None:
    """Print {"infos": […]} once, then {"samples": […]} each period.

    An entry whose UUID is known is found by it, not by its index: indices shift when a GPU is lost.
    """
    nvml = Nvml()
    devices = nvml.devices()
    chosen = [(entry, find(devices, uuid or entry)) for entry, uuid in entries]
    _print({"infos": [info(entry, device) for entry, device in chosen]})
    known = dict(entries)
    while True:
        began = time.monotonic()
        samples = []
        for entry, device in chosen:
            values = nvml.sample(device) if device is not None else {"lost": known[entry] is not None}
            samples.append({"index": entry, **values})
        _print({"samples": samples})
        if select.select([0], [], [], max(0.0, period_s - (time.monotonic() - began)))[0]:  # nobody ever writes: it is the end
            return


def main(argv: Sequence[str]) -> int:
    try:
        if argv[0] == "--list":
            gpus = [info(*pair) for pair in visible(Nvml().devices(), os.environ.get("CUDA_VISIBLE_DEVICES"))]
            _print({"gpus": [gpu for gpu in gpus if gpu["uuid"]]})
        else:
            watch([(str(entry), uuid) for entry, uuid in json.loads(argv[1])], float(argv[2]))
    except NvmlError as error:
        _print({"gpus": [], "problem": str(error)})
    except BrokenPipeError:  # the reader is gone
        os._exit(0)
    return 0


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

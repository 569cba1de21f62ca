"""The part of NVIDIA's management library that the metrics need: names, utilization and memory of the GPUs.

The driver installs `libnvidia-ml.so.1`. Calls may block for seconds, so `gpus.py` runs them on a thread.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96
"""The largest size of a name or a UUID in bytes, with the final zero."""


class NvmlError(Exception):
    """NVML is missing, or reports an error."""


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    uuid: str
    utilization: float | None
    """Share of the last sample period in which a kernel ran. None if NVML does not report it, as for parts of a GPU
    (MIG)."""
    memory_used: int
    memory_total: int


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """Opened once per process. The constructor and `read` raise `NvmlError`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NvmlError(str(error)) from None
        self._call("nvmlInit_v2")

    def read(self) -> list[Gpu]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def _gpu(self, index: int) -> Gpu:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        utilization = _Utilization()
        try:
            self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(utilization))
            busy = utilization.gpu / 100
        except NvmlError:
            busy = None
        name, uuid = self._text("nvmlDeviceGetName", device), self._text("nvmlDeviceGetUUID", device)
        return Gpu(index, name, uuid, busy, memory.used, memory.total)

    def _text(self, function: str, device: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT)
        self._call(function, device, buffer, ctypes.c_uint(_TEXT))
        return buffer.value.decode("utf-8", "replace")

    def _call(self, name: str, *arguments: object) -> None:
        try:
            status = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NvmlError(f"this driver has no {name}") from None
        if status != 0:
            raise NvmlError(f"{name} returned {status}")

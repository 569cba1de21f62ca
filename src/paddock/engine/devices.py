"""How libllama was built, and the devices that it can use."""

from __future__ import annotations

import ctypes

import msgspec

from paddock.engine import library
from paddock.engine.libllama import lib
from paddock.types import LibraryInfo

# ggml's numbers. libllama uses an integrated GPU only if there is no other.
_CPU, _GPU, _INTEGRATED_GPU = 0, 1, 2


class Gpu(msgspec.Struct, frozen=True):
    name: str
    free: int
    total: int
    description: str


class Build(LibraryInfo, frozen=True):
    gpus: tuple[Gpu, ...] = ()


def build() -> Build:
    return Build(**msgspec.structs.asdict(library.info()), gpus=tuple(gpus()))


def gpus() -> list[Gpu]:
    library.start(verbose=False)
    devices = [(device, kind) for device, _, kind in _devices()]
    wanted = _GPU if any(kind == _GPU for _, kind in devices) else _INTEGRATED_GPU
    return [_gpu(device) for device, kind in devices if kind == wanted]


def has_gpu_device() -> bool:
    """Whether there is a GPU here or on an RPC server. libllama's own answer is about how it was built."""
    return any(kind in (_GPU, _INTEGRATED_GPU) for _, _, kind in _devices())


def accelerators() -> dict[str, int]:
    """The addresses of all devices but the CPU, by name."""
    return {name: device.value or 0 for device, name, kind in _devices() if kind != _CPU}


def buffer_types() -> dict[str, int]:
    """The addresses of the buffer types of all devices, by name."""
    addresses = [lib.ggml_backend_dev_buffer_type(device) for device, _, _ in _devices()]
    return {
        lib.ggml_backend_buft_name(ctypes.c_void_p(address)).decode("utf-8", "replace"): address
        for address in addresses
        if address
    }


def _devices() -> list[tuple[ctypes.c_void_p, str, int]]:
    """The address, name and kind of each device."""
    found = []
    for index in range(lib.ggml_backend_dev_count()):
        device = ctypes.c_void_p(lib.ggml_backend_dev_get(ctypes.c_size_t(index)))
        name = lib.ggml_backend_dev_name(device).decode("utf-8", "replace")
        found.append((device, name, int(lib.ggml_backend_dev_type(device))))
    return found


def _gpu(device: ctypes.c_void_p) -> Gpu:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    name, description = (
        text.decode("utf-8", "replace")
        for text in (lib.ggml_backend_dev_name(device), lib.ggml_backend_dev_description(device))
    )
    return Gpu(name, free.value, total.value, description)

"""Checks that a library calls the functions of `SamplerInterface` at their places.

The interface is marked as experimental in llama.h, and no default shows its layout. So a sampler whose functions only
take note of their calls is used once. Calls of such functions are harmless, whatever arguments they were made for.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, Structure, c_void_p
from typing import Any

from paddock.engine.libllama.functions import SAMPLERS
from paddock.engine.libllama.structs import SamplerChainParams, SamplerInterface

_Recorder = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
_SLOTS = 32
_TRUE = 1


class _Recorders(Structure):
    _fields_ = tuple((f"slot_{number}", _Recorder) for number in range(_SLOTS))


def has_sampler_layout(lib: Any, context: Any) -> bool:
    """Whether samplers of this interface can be attached to contexts of this library."""
    return all(lib.has(name) for name in SAMPLERS) and _calls_expected(lib, context)


def _calls_expected(lib: Any, context: Any) -> bool:
    calls: list[int] = []
    text = ctypes.create_string_buffer(b"probe")

    def recorder(slot: int) -> Any:
        def record(*_: Any) -> int:
            calls.append(slot)
            return ctypes.addressof(text) if slot == 0 else _TRUE

        return _Recorder(record)

    interface = _Recorders(*(recorder(slot) for slot in range(_SLOTS)))
    sampler = lib.llama_sampler_init(ctypes.byref(interface), None)
    lib.llama_sampler_accept(sampler, 0)
    lib.llama_sampler_apply(sampler, None)
    lib.llama_sampler_reset(sampler)
    mirrored, calls[:] = list(calls), []
    chain = lib.llama_sampler_chain_init(SamplerChainParams(no_perf=True))
    lib.llama_sampler_chain_add(chain, sampler)
    is_attached = bool(lib.llama_set_sampler(context, 0, chain))
    attached, calls[:] = list(calls), []
    lib.llama_set_sampler(context, 0, None)
    lib.llama_sampler_free(chain)
    places = {name: number for number, (name, *_) in enumerate(SamplerInterface._fields_)}
    building = {places["backend_init"], places["backend_apply"], places["backend_reset"]}
    return (
        is_attached
        and mirrored == [places["accept"], places["apply"], places["reset"]]
        and attached[:1] == [places["backend_init"]]
        and places["backend_apply"] in attached
        and set(attached) <= building
        and calls == [places["free"]]
    )

"""The functions of libllama that tests call, on the library that the engine has loaded: those of the engine, and some
that it does not use. They have the names of llama.h.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import Batch

GGML_TYPE_F32 = 0


class llama_token_data(ctypes.Structure):  # noqa: N801 (the name in llama.h)
    _fields_ = (("id", c_int32), ("logit", c_float), ("p", c_float))


class llama_token_data_array(ctypes.Structure):  # noqa: N801
    _fields_ = (("data", POINTER(llama_token_data)), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool))


class llama_logit_bias(ctypes.Structure):  # noqa: N801
    _fields_ = (("token", c_int32), ("bias", c_float))


_CHAIN: dict[str, tuple[Any, ...]] = {
    "adaptive_p": (c_float, c_float, c_uint32),
    "dry": (c_void_p, c_float, c_float, c_int32, c_int32, POINTER(c_char_p), c_size_t),
    "logit_bias": (c_int32, c_int32, POINTER(llama_logit_bias)),
    "min_p": (c_float, c_size_t),
    "mirostat": (c_int32, c_uint32, c_float, c_float, c_int32),
    "mirostat_v2": (c_uint32, c_float, c_float),
    "penalties": (c_int32, c_int32, c_float, c_float, c_float),
    "temp": (c_float,),
    "temp_ext": (c_float, c_float, c_float),
    "top_k": (c_int32,),
    "top_n_sigma": (c_float,),
    "top_p": (c_float, c_size_t),
    "typical": (c_float, c_size_t),
    "xtc": (c_float, c_float, c_size_t, c_uint32),
}
_MORE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_batch_get_one": (Batch, (POINTER(c_int32), c_int32)),
    "llama_chat_builtin_templates": (c_int32, (POINTER(c_char_p), c_size_t)),
    "llama_model_n_embd": (c_int32, (c_void_p,)),
    "llama_sampler_accept": (None, (c_void_p, c_int32)),
    "llama_sampler_apply": (None, (c_void_p, POINTER(llama_token_data_array))),
    "llama_sampler_free": (None, (c_void_p,)),
    **{f"llama_sampler_init_{name}": (c_void_p, arguments) for name, arguments in _CHAIN.items()},
}
_loaded = ctypes.CDLL(str(lib.path))


def __getattr__(name: str) -> Any:
    if name not in _MORE:
        return getattr(lib, name)
    function = getattr(_loaded, name)
    function.restype, function.argtypes = _MORE[name]
    return function

"""A thin binding of libmtmd, llama.cpp's library for images and sound, and the checks that it is the expected one.

Its functions are in the same file as libllama's, or in a library beside it. mtmd.h calls itself experimental. So all
functions must be there, defaults must be at their places, and `engine/projector.py` reads a picture and a text with
known results before the first request does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint32,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Any

from paddock.engine.libllama.layout import compare
from paddock.engine.libllama.loading import Library
from paddock.engine.libllama.structs import LogCallback
from paddock.errors import LibraryUnusable

_CONTEXT = _BITMAP = _CHUNK = _CHUNKS = _IMAGE = _MODEL = c_void_p
_NAMES = ("libmtmd.so", "libmtmd.dylib")
TEXT, IMAGE, AUDIO = range(3)
"""mtmd_input_chunk_type"""


class MediaParams(Structure):
    """mtmd_context_params. Texts are addresses, because the check must not follow one that is none."""

    _fields_ = (
        ("use_gpu", c_bool),
        ("device", c_void_p),
        ("print_timings", c_bool),
        ("n_threads", c_int),
        ("image_marker", c_void_p),
        ("media_marker", c_void_p),
        ("flash_attn_type", c_int),
        ("warmup", c_bool),
        ("image_min_tokens", c_int),
        ("image_max_tokens", c_int),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("batch_max_tokens", c_int32),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("_reserve", c_char * 256),
    )


class InputText(Structure):
    """mtmd_input_text"""

    _fields_ = (("text", c_char_p), ("text_len", c_size_t), ("add_special", c_bool), ("parse_special", c_bool))


class FileOptions(Structure):
    """mtmd_helper_init_opt. Only video uses it."""

    _fields_ = (("fps_target", c_float), ("ffmpeg_bin_dir", c_void_p), ("timestamp_interval_ms", c_int64))


class ReadFile(Structure):
    """mtmd_helper_bitmap_wrapper"""

    _fields_ = (("bitmap", _BITMAP), ("video", c_void_p))


class DecoderPosition(Structure):
    """mtmd_decoder_pos"""

    _fields_ = (("t", c_uint32), ("x", c_uint32), ("y", c_uint32), ("z", c_uint32))


_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "mtmd_bitmap_free": (None, (_BITMAP,)),
    "mtmd_bitmap_get_data": (POINTER(c_ubyte), (_BITMAP,)),
    "mtmd_bitmap_get_n_bytes": (c_size_t, (_BITMAP,)),
    "mtmd_bitmap_get_nx": (c_uint32, (_BITMAP,)),
    "mtmd_bitmap_get_ny": (c_uint32, (_BITMAP,)),
    "mtmd_bitmap_is_audio": (c_bool, (_BITMAP,)),
    "mtmd_bitmap_set_id": (None, (_BITMAP, c_char_p)),
    "mtmd_context_params_default": (MediaParams, ()),
    "mtmd_decode_use_mrope": (c_bool, (_CONTEXT,)),
    "mtmd_decode_use_non_causal": (c_bool, (_CONTEXT, _CHUNK)),
    "mtmd_default_marker": (c_void_p, ()),
    "mtmd_encode_chunk": (c_int32, (_CONTEXT, _CHUNK)),
    "mtmd_free": (None, (_CONTEXT,)),
    "mtmd_get_audio_sample_rate": (c_int, (_CONTEXT,)),
    "mtmd_get_output_embd": (POINTER(c_float), (_CONTEXT,)),
    "mtmd_helper_bitmap_init_from_buf": (ReadFile, (_CONTEXT, c_char_p, c_size_t, c_bool, FileOptions)),
    "mtmd_helper_image_get_decoder_pos": (None, (_IMAGE, c_int32, POINTER(DecoderPosition))),
    "mtmd_helper_init_opt_default": (FileOptions, ()),
    "mtmd_helper_log_set": (None, (LogCallback, c_void_p)),
    "mtmd_init_from_file": (_CONTEXT, (c_char_p, _MODEL, MediaParams)),
    "mtmd_input_chunk_copy": (_CHUNK, (_CHUNK,)),
    "mtmd_input_chunk_free": (None, (_CHUNK,)),
    "mtmd_input_chunk_get_id": (c_char_p, (_CHUNK,)),
    "mtmd_input_chunk_get_n_pos": (c_int32, (_CHUNK,)),
    "mtmd_input_chunk_get_n_tokens": (c_size_t, (_CHUNK,)),
    "mtmd_input_chunk_get_tokens_image": (_IMAGE, (_CHUNK,)),
    "mtmd_input_chunk_get_tokens_text": (POINTER(c_int32), (_CHUNK, POINTER(c_size_t))),
    "mtmd_input_chunk_get_type": (c_int, (_CHUNK,)),
    "mtmd_input_chunks_free": (None, (_CHUNKS,)),
    "mtmd_input_chunks_get": (_CHUNK, (_CHUNKS, c_size_t)),
    "mtmd_input_chunks_init": (_CHUNKS, ()),
    "mtmd_input_chunks_size": (c_size_t, (_CHUNKS,)),
    "mtmd_support_audio": (c_bool, (_CONTEXT,)),
    "mtmd_support_vision": (c_bool, (_CONTEXT,)),
    "mtmd_tokenize": (c_int32, (_CONTEXT, _CHUNKS, POINTER(InputText), POINTER(_BITMAP), c_size_t)),
}
_LLAMA_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_model_n_embd_inp": (c_int32, (_MODEL,)),
    "llama_set_causal_attn": (None, (c_void_p, c_bool)),
}

DEFAULTS: Mapping[str, Any] = {
    "use_gpu": True,
    "device": None,
    "print_timings": True,
    "n_threads": 4,
    "image_marker": None,
    "flash_attn_type": -1,
    "warmup": True,
    "image_min_tokens": -1,
    "image_max_tokens": -1,
    "cb_eval": None,
    "cb_eval_user_data": None,
    "batch_max_tokens": 1024,
    "progress_callback": None,
    "progress_callback_user_data": None,
}
FILE_DEFAULTS: Mapping[str, Any] = {"fps_target": 4.0, "ffmpeg_bin_dir": None, "timestamp_interval_ms": 5000}


class MediaLibrary:
    """The functions of libmtmd, as attributes, and the two of libllama that only media need."""

    def __init__(self, library: Library) -> None:
        """Raises `LibraryUnusable`."""
        loaded, path = _find(library)
        missing = [
            name
            for source, functions in ((loaded, _FUNCTIONS), (library.handle, _LLAMA_FUNCTIONS))
            for name, signature in functions.items()
            if not self._declare(source, name, signature)
        ]
        if missing:
            raise _unusable(path, f"it has no function {missing[0]}")
        defaults = {**DEFAULTS, "media_marker": self.mtmd_default_marker()}
        found = [
            *compare("mtmd_context_params", self.mtmd_context_params_default(), defaults),
            *compare("mtmd_helper_init_opt", self.mtmd_helper_init_opt_default(), FILE_DEFAULTS),
        ]
        if found:
            raise _unusable(path, f"it has other structs: {found[0]}")
        self.path = path

    def __getattr__(self, name: str) -> Any:
        """Only for type checkers: the functions are attributes of the object."""
        raise AttributeError(name)

    def _declare(self, loaded: ctypes.CDLL, name: str, signature: tuple[Any, tuple[Any, ...]]) -> bool:
        function = getattr(loaded, name, None)
        if function is None:
            return False
        function.restype, function.argtypes = signature[0], list(signature[1])
        setattr(self, name, function)
        return True


@cache
def open_media_library(library: Library) -> MediaLibrary:
    """Raises `LibraryUnusable` if the library was built without libmtmd, or has another version of it."""
    return MediaLibrary(library)


def _find(library: Library) -> tuple[ctypes.CDLL, Path]:
    if hasattr(library.handle, "mtmd_init_from_file"):
        return library.handle, library.path
    for name in _NAMES:
        beside = library.path.parent / name
        if beside.exists():
            try:
                return ctypes.CDLL(str(beside)), beside
            except OSError as error:
                raise _unusable(beside, str(error)) from None
    raise _unusable(library.path, "it was built without libmtmd, and there is no libmtmd beside it")


def _unusable(path: Path, problem: str) -> LibraryUnusable:
    return LibraryUnusable(f"cannot read images or audio with {path}: {problem}")

"""Greedy answers to prompts with images by libmtmd's own helper, which decodes a prompt without Paddock's scheduler,
cache and batches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddock.engine.batch import Batch
from paddock.engine.libllama import lib
from paddock.engine.libllama.mtmd import InputText, open_media_library
from paddock.engine.llama import LlamaEngine
from paddock.engine.loading import context_params, new_context
from paddock.types import Span


def reference_answer(engine: LlamaEngine, text: str, files: Sequence[bytes], count: int) -> list[int]:
    """The first `count` tokens after the text, in which the engine's marker stands for each file."""
    projector = engine.media
    assert projector is not None
    mtmd, options = open_media_library(lib), engine._options
    helper = ctypes.CDLL(str(mtmd.path)).mtmd_helper_eval_chunks
    helper.restype = ctypes.c_int32
    pointer = ctypes.c_void_p
    helper.argtypes = [
        pointer,
        pointer,
        pointer,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_bool,
        pointer,
    ]
    params = context_params(options, n_ctx=2048, n_batch=512, unified=True)
    context = new_context(engine._model, params, options)
    bitmaps = [projector._bitmap(file) for file in files]
    chunks = mtmd.mtmd_input_chunks_init()
    try:
        data = text.encode()
        wanted = InputText(data, len(data), True, True)
        given = (pointer * len(bitmaps))(*bitmaps)
        assert mtmd.mtmd_tokenize(projector._context, chunks, ctypes.byref(wanted), given, len(bitmaps)) == 0
        end = ctypes.c_int32()
        assert helper(projector._context, context, chunks, 0, 0, 512, True, ctypes.byref(end)) == 0
        return _greedy(context, engine.vocab.size, end.value, count)
    finally:
        mtmd.mtmd_input_chunks_free(chunks)
        for bitmap in bitmaps:
            mtmd.mtmd_bitmap_free(bitmap)
        lib.llama_free(context)


def _greedy(context: Any, n_vocab: int, position: int, count: int) -> list[int]:
    batch, tokens = Batch(1), list[int]()
    while True:
        logits = np.ctypeslib.as_array(lib.llama_get_logits(context), shape=(n_vocab,))
        tokens.append(int(logits.argmax()))
        if len(tokens) == count:
            return tokens
        batch.decode(context, [Span(0, position, tokens[-1:], sampler=True)], n_vocab=n_vocab)
        position += 1

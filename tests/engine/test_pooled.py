"""Embeddings and ranking scores, against direct calls of libllama."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import PooledEngine, open_pooled_engine
from paddock.errors import DecodeFailed
from paddock.types import Pooling
from tests import tiny_models as tiny
from tests.engine import native as lib
from tests.options import engine_options
from tests.tiers import examples

TEXTS = ["a horse on the hill", "and", "of the other hill in the rain, is it?", "the mare and the foal", "no"]
# Without rounding to half precision, so that only the order of additions can differ.
EXACT: dict[str, Any] = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
NUMBERS: dict[Pooling, int] = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}

Matrix = npt.NDArray[np.float32]


def _open(model: Path, pooling: Pooling, **options: Any) -> PooledEngine:
    return open_pooled_engine(
        str(model), engine_options(n_threads=1, pooling=pooling, **EXACT, **options), lambda _: None
    )


def _directly(model: Path, pooling: Pooling, tokens: list[int]) -> Matrix:
    """The result for one input in a context of its own."""
    handle = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 0
    params.type_k = params.type_v = lib.GGML_TYPE_F32
    params.embeddings = True
    params.pooling_type = NUMBERS[pooling]
    context = lib.llama_init_from_model(handle, params)
    numbers = (ctypes.c_int32 * len(tokens))(*tokens)  # the batch only points to them
    batch = lib.llama_batch_get_one(numbers, len(tokens))
    assert context is not None and handle is not None
    assert lib.llama_decode(context, batch) == 0
    width = 1 if pooling == "rank" else lib.llama_model_n_embd(handle)
    rows = len(tokens) if pooling == "none" else 1
    get: Callable[..., Any] = lib.llama_get_embeddings
    pointer = get(context) if pooling == "none" else lib.llama_get_embeddings_seq(context, 0)
    result = np.ctypeslib.as_array(pointer, shape=(rows, width)).copy()
    lib.llama_free(context)
    lib.llama_model_free(handle)
    return result


def _equal(one: Matrix, other: Matrix) -> bool:
    """Compare vectors of length 1, and scores as they are. (BERT models use a lookup table of low precision.)"""
    size = 1.0 if one.shape == (1, 1) else np.linalg.norm(other, axis=1, keepdims=True)
    return bool(one.shape == other.shape and np.abs((one - other) / size).max() < 1e-4)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        *[("embedding", pooling) for pooling in ("none", "mean", "cls", "last")],
        ("reranking", "rank"),
        *[("llama", pooling) for pooling in ("none", "mean", "last")],
        ("hybrid", "mean"),
        ("sliding_window", "mean"),
        ("recurrent", "last"),
    ],
)
def test_a_batched_input_gives_the_same_result_as_a_single_one(
    tiny_models: dict[str, Path], kind: str, pooling: Pooling
) -> None:
    engine = _open(tiny_models[kind], pooling)
    inputs = [engine.vocab.tokenize(text, add_special=True, parse_special=True) for text in TEXTS]
    packed = engine.pool(inputs)
    for tokens, vectors in zip(inputs, packed, strict=True):
        assert vectors.shape == (len(tokens) if pooling == "none" else 1, engine.info.n_embd)
        assert _equal(vectors, _directly(tiny_models[kind], pooling, tokens))
        assert _equal(vectors, engine.pool([tokens])[0])
    assert len({vectors.tobytes() for vectors in packed}) == len(inputs), "all differ"
    engine.close()


@pytest.fixture(scope="module")
def engine(tiny_models: dict[str, Path]) -> PooledEngine:
    return _open(tiny_models["embedding"], "mean", n_batch=256)


@examples(50)
@given(st.lists(st.lists(st.integers(0, 70), min_size=1, max_size=60), min_size=1, max_size=4))
def test_a_step_does_not_affect_the_next_one(engine: PooledEngine, inputs: list[list[int]]) -> None:
    batched = engine.pool(inputs)
    alone = [engine.pool([tokens])[0] for tokens in inputs]
    assert all(map(_equal, batched, alone))


def test_a_step_that_would_abort_the_process_is_refused(engine: PooledEngine) -> None:
    steps: list[list[list[int]]] = [[[5] * 257], [[5] * 200, [5] * 200], [[5]] * 65, [[]], [[5], [10**6]], [[-1]], []]
    for inputs in steps:
        with pytest.raises(DecodeFailed):
            engine.pool(inputs)
    assert engine.pool([[5] * 256])[0].shape == (1, engine.info.n_embd)


def test_the_longest_input_is_the_trained_length_or_the_batch_size(tiny_models: dict[str, Path]) -> None:
    sizes = {"n_batch": 4096}, {"n_batch": 100}, {"n_batch": 4096, "n_ctx": 64}, {"n_batch": 4096, "n_ctx": 0}
    engines = [_open(tiny_models["embedding"], "mean", **options) for options in sizes]
    assert [engine.info.n_ctx for engine in engines] == [2048, 100, 64, 2048]
    assert engines[0].pool([[5] * 2048])[0].shape == (1, 64)
    for engine in engines:
        engine.close()


def test_deterministic_vectors_are_bit_identical(tiny_models: dict[str, Path]) -> None:
    engine = _open(tiny_models["embedding"], "mean", deterministic=True)
    assert engine.n_sequences == 1
    alone = engine.pool([[2, 5, 6, 7, 3]])[0]
    engine.pool([[2, *range(5, 60), 3]])
    assert np.array_equal(engine.pool([[2, 5, 6, 7, 3]])[0], alone)
    engine.close()


def test_a_pair_has_the_separators_of_the_model(tiny_models: dict[str, Path]) -> None:
    engine = _open(tiny_models["reranking"], "rank")
    query, document = (
        engine.vocab.tokenize(text, add_special=False, parse_special=False) for text in ("who", "the mare")
    )
    begin, *_, separator = engine.vocab.tokenize("", add_special=True, parse_special=False)
    assert engine.pair("who", "the mare") == [begin, *query, separator, *document]
    assert engine.pair("who", "[SEP]").count(separator) == 1, "special tokens in a document are text"
    engine.close()


def test_a_pair_is_rendered_by_the_template_of_the_model(tmp_path: Path) -> None:
    tiny.generative_reranking(tmp_path / "reranking.gguf")
    engine = _open(tmp_path / "reranking.gguf", "mean")
    filled = engine.vocab.tokenize("<s>{document} of the mare</s>", add_special=False, parse_special=True)
    assert engine.pair("{document}", "the mare") == filled, "a placeholder in a query is text"
    assert (filled[0], filled[-1]) == (1, 2)
    engine.close()

"""The probabilities of prompt tokens, against a direct computation with libllama in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.engine import native as lib
from tests.engine.harness import Harness

TEXT = " ".join(f"the {n} and the {n * 7 % 13} in it" for n in range(30))


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "streams"])
def harness(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Harness]:
    # Full precision, so that only a wrong row can differ. Flash attention depends on the number of queries.
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
    harness = Harness(tiny_models["llama"], kv_unified=request.param, parallel=3, chunk=512, **exact)
    yield harness
    harness.close()


def direct(path: Path, tokens: list[int]) -> npt.NDArray[np.float64]:
    """The log-probabilities after each token."""
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 1024
    params.type_k = params.type_v = lib.GGML_TYPE_F32
    params.flash_attn_type = 0
    context = lib.llama_init_from_model(model, params)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for at, token in enumerate(tokens):
        batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, 1
        batch.seq_id[at][0] = 0
    assert lib.llama_decode(context, batch) == 0
    logits = np.ctypeslib.as_array(lib.llama_get_logits(context), shape=(len(tokens), n_vocab)).astype(np.float64)
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    peak = logits.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
    return result


# Around the size of a step, and several steps.
@pytest.mark.parametrize("size", [2, 127, 128, 129, 130, 257, 320])
@pytest.mark.parametrize("deterministic", [False, True])
def test_prompt_probabilities_are_those_of_libllama(
    harness: Harness, tiny_models: dict[str, Path], size: int, deterministic: bool
) -> None:
    tokens = harness.engine.vocab.tokenize(TEXT, add_special=True, parse_special=True)[:size]
    assert len(tokens) == size
    text = b"".join(map(harness.engine.vocab.piece, tokens)).decode()
    logprobs = direct(tiny_models["llama"], tokens)
    for id in range(2):  # with a cold and a warm cache
        request = harness.ask(id, text, max_tokens=3, prompt_probs=2, deterministic=deterministic)
        assert request.tokens == tokens
        harness.ask(10 + id, TEXT[5:], max_tokens=9)
        harness.run()
        prompt_probs = harness.prompt_probs.pop(id)
        assert len(prompt_probs) == size - 1
        assert request.cached == 0
        for at, logprob_of_token in enumerate(prompt_probs):
            assert logprob_of_token.chosen == pytest.approx(logprobs[at][tokens[at + 1]], abs=0.001)
            assert [logprob for _, logprob in logprob_of_token.top] == pytest.approx(
                np.sort(logprobs[at])[:-3:-1], abs=0.001
            )

"""Answers in one exact batch are bit-identical to answers that are computed alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paddock.engine import open_engine
from paddock.types import Forget, Sampled, SamplingParams, Span, TokenLogprobs
from tests.options import engine_options

PROBS = 5


class Streams:
    """An engine in deterministic mode, whose sequences the test fills."""

    def __init__(self, model: Path, **options: object) -> None:
        defaults = {"n_ctx": 6 * 1024, "parallel": 6, "n_threads": 2, "kv_unified": False, "deterministic": True}
        self.engine = open_engine(str(model), engine_options(**defaults | options), lambda _: None)
        self._sizes: dict[int, int] = {}

    def fill(self, sequence: int, size: int, seed: int) -> None:
        tokens = np.random.default_rng(seed).integers(3, self.engine.info.n_vocab, size).tolist()
        self.engine.apply([Forget(sequence)])
        for start in range(0, size, 128):
            self.engine.decode([Span(sequence, start, tokens[start : start + 128])], exact=True)
        self._sizes[sequence] = size

    def next(self, *sequences: int) -> dict[int, TokenLogprobs]:
        """The log-probabilities after each sequence, computed in one step. The new tokens are removed again."""
        params = SamplingParams(temperature=0, n_probs=PROBS)
        spans = [Span(s, self._sizes[s], [5], self.engine.sampler(params, [])) for s in sequences]
        results = self.engine.decode(spans, exact=True)
        self.engine.apply([Forget(s, self._sizes[s]) for s in sequences])
        return {s: _logprobs(result) for s, result in zip(sequences, results, strict=True)}


def _logprobs(result: Sampled | None) -> TokenLogprobs:
    assert result is not None and result.logprobs is not None
    return result.logprobs


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_answers_are_bit_identical_for_every_batch_size(tiny_models: dict[str, Path], flash_attn: str) -> None:
    streams = Streams(tiny_models["llama"], flash_attn=flash_attn)
    for sequence, size in enumerate(
        (700, 30, 900, 300, 520, 5)
    ):  # below and above the length at which the CPU's attention changes
        streams.fill(sequence, size, seed=sequence)
    alone = {sequence: streams.next(sequence)[sequence] for sequence in range(6)}
    most = streams.engine.info.exact_batch
    for first in range(6):
        for count in range(1, min(most, 6 - first) + 1):
            sequences = range(first, first + count)
            assert streams.next(*sequences) == {sequence: alone[sequence] for sequence in sequences}
    spread = [0, 2, 4][:most]
    assert streams.next(*spread) == {sequence: alone[sequence] for sequence in spread}, "also with gaps between them"


def test_only_a_deterministic_server_with_streams_has_an_exact_batch(tiny_models: dict[str, Path]) -> None:
    for options in ({"deterministic": False}, {"kv_unified": True}, {"parallel": 1}):
        assert Streams(tiny_models["llama"], **options).engine.info.exact_batch == 1
    assert Streams(tiny_models["recurrent"]).engine.info.exact_batch == 1

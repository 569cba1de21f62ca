"""Any settings, grammar, bias and logits give an allowed token, or an error of this request that names the reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Logits
from paddock.engine.fake_vocab import FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.sampler import Sampler
from paddock.types import Constraint, Sampled, SamplingParams
from tests.engine.sampling import NAMES, changed
from tests.tiers import examples, full

_N_VOCAB = 260
_LETTERS = b'ab01"{ \n'
_SOURCE = GrammarSource(FakeVocab(), _N_VOCAB)
_GRAMMARS = [
    _SOURCE.compile(Constraint(kind, source, "grammar"))  # type: ignore[arg-type]
    for kind, source in (
        ("gbnf", 'root ::= "a"'),
        ("gbnf", "root ::= [ab]* [01]"),
        ("regex", "(ab)+|[0-9]{1,3}"),
        ("json_schema", '{"type":"object","properties":{"a":{"enum":[0,1]}}}'),
    )
]
_tokens = st.sampled_from(list(_LETTERS)) | st.integers(0, _N_VOCAB - 1)
_shares = st.sampled_from([0.0, 5e-324, 0.05, 0.3, 0.95, 1.0])
_factors = st.sampled_from([-100.0, 0.0, 1.0, 100.0])
_large = st.sampled_from([0.0, 1e-300, 0.1, 1.0, 5.0, 1e30, 1e300])
_counts = st.sampled_from([-1, 0, 1, 2, 40, 257, 10**6, 2**31 - 1])
# The values that the HTTP API accepts.
_SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": _large,
    "dynatemp_range": _large,
    "dynatemp_exponent": _large,
    "top_k": _counts,
    "top_p": _shares,
    "min_p": _shares,
    "typical_p": _shares,
    "top_n_sigma": st.sampled_from([-1.0, 0.0, 1e-300, 1.0, 1e300]),
    "xtc_probability": _shares,
    "xtc_threshold": _shares,
    "repeat_last_n": _counts,
    "repeat_penalty": st.sampled_from([0.01, 1.0, 1.3, 100.0]),
    "presence_penalty": _factors,
    "frequency_penalty": _factors,
    "dry_multiplier": _large,
    "dry_base": st.sampled_from([1.0, 1.0000001, 1.75, 1e300]),
    "dry_allowed_length": st.sampled_from([0, 1, 2, 2**31 - 1]),
    "dry_penalty_last_n": _counts,
    "mirostat": st.integers(0, 2),
    "mirostat_tau": _large,
    "mirostat_eta": _large,
    "min_keep": st.sampled_from([0, 1, 3, 2**31 - 1]),
    "adaptive_target": st.sampled_from([-1.0, 0.0, 0.4, 1.0]),
    "adaptive_decay": st.sampled_from([0.0, 0.9, 0.99]),
    "samplers": st.lists(st.sampled_from((*NAMES, "adaptive_p")), max_size=12).map(tuple),
    "logit_bias": st.lists(
        st.tuples(_tokens, st.sampled_from([-math.inf, -math.inf, -1000.0, 2.5, 1000.0])), max_size=8
    ).map(tuple),
    "ignore_eos": st.booleans(),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "n_probs": st.sampled_from([-1, 0, 3, 10**6]),
    "post_sampling_probs": st.booleans(),
}
_WRONG = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 0.0)


@st.composite
def _params(draw: st.DrawFn) -> SamplingParams:
    names = draw(st.sets(st.sampled_from(sorted(_SETTINGS))))
    return changed(SamplingParams(), **{name: draw(_SETTINGS[name]) for name in sorted(names)})


@st.composite
def _row(draw: st.DrawFn) -> Logits:
    """Like a model's, with some values that no healthy model gives."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row: Logits = rng.normal(0, draw(st.sampled_from([0.0, 0.5, 4.0, 1e4])), _N_VOCAB).astype(np.float32)
    for value in draw(st.lists(st.sampled_from(_WRONG), max_size=2)):
        row[rng.random(_N_VOCAB) < draw(st.sampled_from([0.02, 0.5, 1.0]))] = value
    return row


@st.composite
def _request(draw: st.DrawFn) -> tuple[SamplingParams, list[int], Grammar | None]:
    grammar = draw(st.none() | st.sampled_from(_GRAMMARS))
    return draw(_params()), draw(st.lists(_tokens, max_size=40)), grammar


def _sampler(params: SamplingParams, prompt: list[int], grammar: Grammar | None) -> Sampler:
    return Sampler(
        params,
        prompt,
        end_tokens=FakeVocab.end_tokens,
        breakers=lambda _: frozenset(b"\n"),
        grammar=None if grammar is None else grammar.fork(),
    )


def _check(sampled: Sampled, sampler: Sampler, forbidden: Any) -> None:
    if sampled.error is not None:
        # `sampling_failed` would be a bug.
        assert sampled.token is None and sampled.error.code in ("constraint_failed", "decode_failed"), sampled.error
        return
    assert sampled.token is not None and 0 <= sampled.token < _N_VOCAB
    assert forbidden is None or not forbidden[sampled.token]
    assert sampled.token not in sampler.bias_ids[np.isneginf(sampler.bias)]
    if sampled.logprobs is not None:
        reported = [sampled.logprobs.chosen, *(logprob for _, logprob in sampled.logprobs.top)]
        assert all(math.isfinite(logprob) and logprob <= 1e-6 for logprob in reported)


def _try(requests: list[tuple[SamplingParams, list[int], Grammar | None]], steps: list[list[Logits]]) -> None:
    """Three requests in a batch, beside two usual ones that must get the tokens that they get alone."""
    usual = [SamplingParams(seed=1), SamplingParams(temperature=0.0)]
    healthy = np.random.default_rng(0).normal(0, 3, (2, _N_VOCAB)).astype(np.float32)
    alone = [Sampler(params) for params in usual]
    samplers = [_sampler(*request) for request in requests] + [Sampler(params) for params in usual]
    for rows in steps:
        forbidden = [None if s.grammar is None else s.grammar.forbidden() for s in samplers]
        chosen = BatchSampler(samplers).choose(np.stack([*rows[: len(samplers) - 2], *healthy]))
        assert len(chosen) == len(samplers)
        assert [one.token for one in chosen[-2:]] == [
            BatchSampler([sampler]).choose(row[None].copy())[0].token
            for sampler, row in zip(alone, healthy, strict=True)
        ]
        for sampled, sampler, masked in zip(chosen, samplers, forbidden, strict=True):
            _check(sampled, sampler, masked)
        # An answer ends with an error, with its grammar, or with an end token.
        samplers = [
            sampler
            for one, sampler in zip(chosen, samplers, strict=True)
            if one.error is None and not one.last and (sampler.grammar is None or one.token not in FakeVocab.end_tokens)
        ]


_cases = given(
    st.lists(_request(), min_size=1, max_size=3),
    st.lists(st.lists(_row(), min_size=3, max_size=3), min_size=1, max_size=4),
)


@_cases
def test_every_request_gets_an_allowed_token_or_its_own_error(
    requests: list[tuple[SamplingParams, list[int], Grammar | None]], steps: list[list[Logits]]
) -> None:
    _try(requests, steps)


@full
@examples(500)
@_cases
def test_many_settings_and_rows(
    requests: list[tuple[SamplingParams, list[int], Grammar | None]], steps: list[list[Logits]]
) -> None:
    _try(requests, steps)


class Panic(BaseException):
    """As pyo3 raises for a panic in Rust: not an `Exception`."""


@pytest.mark.parametrize("error", [ZeroDivisionError("on purpose"), Panic("on purpose")])
@pytest.mark.parametrize("method", ["restrict", "consume"])
def test_a_grammar_that_raises_ends_only_its_request(
    error: BaseException, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    broken = _GRAMMARS[1].fork()
    monkeypatch.setattr(broken, method, fail)
    rows = np.random.default_rng(0).normal(0, 3, (3, _N_VOCAB)).astype(np.float32)
    samplers = [Sampler(SamplingParams(seed=n), grammar=_GRAMMARS[1].fork()) for n in range(3)]
    expected = BatchSampler(samplers).choose(rows.copy())
    samplers = [Sampler(SamplingParams(seed=n), grammar=broken if n == 1 else _GRAMMARS[1].fork()) for n in range(3)]
    chosen = BatchSampler(samplers).choose(rows)
    assert [chosen[0], chosen[2]] == [expected[0], expected[2]]
    assert chosen[1].token is None and chosen[1].error is not None
    assert chosen[1].error.code == "sampling_failed"
    assert chosen[1].error.__cause__ is error

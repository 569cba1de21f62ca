"""Any settings, grammar, bias and logits give an allowed token, or an error of this request that names the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Logits
from paddock.engine.fake_vocab import FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.outputs import Outputs
from paddock.engine.sampler import Sampler
from paddock.types import Constraint, Sampled, SamplingParams, Span
from tests.engine.sampling import accepted_settings, changed, select_groups
from tests.tiers import examples, full

_N_VOCAB = 260
_N_LARGE = 1055  # a device selects only from large vocabularies
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
_SETTINGS = accepted_settings(_tokens)
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


def _check(sampled: Sampled, sampler: Sampler, forbidden: Any = None, *, n_vocab: int = _N_VOCAB) -> None:
    if sampled.error is not None:
        # `sampling_failed` would be a bug.
        assert sampled.token is None and sampled.error.code in ("constraint_failed", "decode_failed"), sampled.error
        return
    assert sampled.token is not None and 0 <= sampled.token < n_vocab
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
@examples(2000)
@_cases
def test_many_settings_and_rows(
    requests: list[tuple[SamplingParams, list[int], Grammar | None]], steps: list[list[Logits]]
) -> None:
    _try(requests, steps)


def _facts(sampled: Sampled) -> tuple[Any, ...]:
    return sampled.token, sampled.logprobs, sampled.last, sampled.error and sampled.error.code


def _alone(sampler: Sampler, rows: list[Logits]) -> Iterator[Sampled]:
    """Token by token, until the answer ends."""
    for row in rows:
        (sampled,) = BatchSampler([sampler]).choose(row[None].copy())
        yield sampled
        if sampled.error is not None or sampled.last or sampled.token in FakeVocab.end_tokens:
            return


@examples(200)
@given(
    st.lists(_request(), min_size=2, max_size=2),
    st.lists(st.lists(_row(), min_size=2, max_size=2), min_size=2, max_size=5),
    st.lists(_tokens, min_size=2, max_size=2),
    st.integers(0, 4),
)
def test_drafts_give_the_same_tokens_and_errors(
    requests: list[tuple[SamplingParams, list[int], Grammar | None]],
    steps: list[list[Logits]],
    wrong: list[int],
    right: int,
) -> None:
    """The first drafted tokens are right, and the next one may be wrong."""
    rows = [list(own) for own in zip(*steps, strict=True)]
    spans, expected = [], []
    for request, own, other in zip(requests, rows, wrong, strict=True):
        alone = list(_alone(_sampler(*request), own))
        drafts = [one.token for one in alone[:right] if one.token is not None and one.token not in FakeVocab.end_tokens]
        drafts = [*drafts, other][: len(own) - 1]
        spans.append(Span(0, 0, [0], _sampler(*request), draft=drafts))
        agreeing = takewhile(lambda pair: pair[0].token == pair[1], zip(alone, drafts, strict=False))
        expected.append(alone[: 1 + len(list(agreeing))])
    outputs = Outputs(None, _N_VOCAB)
    every = np.stack([row for span, own in zip(spans, rows, strict=True) for row in own[: 1 + len(span.draft)]])
    outputs.copied = lambda: every
    for result, others in zip(outputs.sample(spans), expected, strict=True):
        assert result is not None
        assert [_facts(one) for one in (result, *result.more)] == [_facts(other) for other in others]


@examples(500)
@given(st.lists(_params(), min_size=1, max_size=3), st.integers(0, 2**32), st.data())
def test_selected_rows_with_any_values(params: list[SamplingParams], seed: int, data: st.DataObject) -> None:
    """The tokens are those of the whole rows, and never one whose logit is NaN. Or the whole rows are asked for."""
    samplers = [sampler for one in params if (sampler := _sampler(one, [97] * 9, None)).is_selectable]
    rows = np.random.default_rng(seed).normal(0, 4, (len(samplers), _N_LARGE)).astype(np.float32)
    for value in data.draw(st.lists(st.sampled_from(_WRONG), max_size=2)):
        rows[np.random.default_rng(seed + 1).random(rows.shape) < data.draw(st.sampled_from([0.001, 0.5, 1.0]))] = value
    if not samplers or (selected := select_groups(rows, np.random.default_rng(seed))) is None:
        return
    others = deepcopy(samplers)
    chosen = BatchSampler(samplers).choose_selected(selected)
    if chosen is None:
        assert not any(sampler.drawn for sampler in samplers)
        return
    for sampled, sampler, row in zip(chosen, samplers, rows, strict=True):
        _check(sampled, sampler, n_vocab=_N_LARGE)
        assert not np.isnan(row[sampled.token])
    if not np.isnan(rows).any():
        assert [one.token for one in chosen] == [other.token for other in BatchSampler(others).choose(rows)]


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

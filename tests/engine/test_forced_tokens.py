"""Drafts from grammars, and the promise that no draft, right or wrong, changes an answer."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.candidates import Logits
from paddock.engine.fake_vocab import FakeVocab
from paddock.engine.forced_tokens import draft_by_grammar
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.outputs import Outputs
from paddock.engine.sampler import Sampler
from paddock.types import Constraint, Drafting, Sampled, SamplingParams, Span
from tests.engine.harness import Harness
from tests.engine.sampling import unusual_params
from tests.options import draft_params
from tests.tiers import examples, full

# Bytes and some longer tokens, so that a text has several tokenizations.
_LONGER = [b'{"', b'":', b'": "', b'",', b' "', b'"}', b"customer", b"_name", b"name", b"tru", b"true", b"ab", b"abab"]
_END = 256
_N_VOCAB = 257 + len(_LONGER)


class _Vocab(FakeVocab):
    end_tokens = frozenset({_END})

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"" if token == _END else _LONGER[token - 257]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens, data = [], text.encode()
        while data:
            longest = max((piece for piece in _LONGER if data.startswith(piece)), key=len, default=data[:1])
            tokens.append(257 + _LONGER.index(longest) if longest in _LONGER else data[0])
            data = data[len(longest) :]
        return tokens


_VOCAB = _Vocab()
_SCHEMA = {
    "type": "object",
    "properties": {
        "customer_name": {"enum": ["abab", "abba", "a"]},
        "customer_ab": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"name": {"const": "ab"}}}},
    },
    "required": ["customer_name", "customer_ab"],
    "additionalProperties": False,
}
_SOURCES = (
    ("json_schema", json.dumps(_SCHEMA)),
    ("json_schema", '{"type":"object","properties":{"a":{"enum":[0,1]}}}'),
    ("gbnf", 'root ::= "customer_name" ("ab" | "true")* "!"'),
    ("gbnf", 'root ::= "a" | "abab"'),
    ("regex", "(ab)+|[0-9]{1,3}"),
    ("lark", 'start: "<call>" /[ab]{1,4}/ "</call>"'),
)


@cache
def _grammars() -> list[Grammar]:
    source = GrammarSource(_VOCAB, _N_VOCAB)
    return [source.compile(Constraint(kind, text, "grammar")) for kind, text in _SOURCES]  # type: ignore[arg-type]


def _text(tokens: list[int]) -> bytes:
    return b"".join(map(_VOCAB.piece, tokens))


def _after(grammar: Grammar, text: str) -> Grammar:
    grammar = grammar.fork()
    for token in _VOCAB.tokenize(text, add_special=False, parse_special=False):
        assert grammar.consume(token)
    return grammar


# ── what is drafted ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_forced_text_is_drafted_as_the_tokenizer_would_write_it() -> None:
    grammar = _after(_grammars()[0], '{"')
    assert _text(grammar.draft(20)) == b"customer_name"  # the quotation mark may begin a longer token
    assert [_VOCAB.piece(token) for token in grammar.draft(20)] == [b"customer", b"_name"]
    assert grammar.draft(1) == grammar.draft(20)[:1]
    assert grammar.draft(0) == []


def test_nothing_is_drafted_where_several_texts_are_allowed() -> None:
    assert _after(_grammars()[0], '{"customer_name": "').draft(20) == []
    assert _after(_grammars()[0], '{"customer_name": "abab').draft(20) == []


def test_punctuation_is_drafted_as_the_answer_wrote_it_before() -> None:
    schema = {"type": "array", "items": {**_SCHEMA, "properties": {"name": {"type": "integer"}}, "required": ["name"]}}
    grammar = GrammarSource(_VOCAB, _N_VOCAB).compile(Constraint("json_schema", json.dumps(schema), ""))
    for style in ('{"name":1}, ', '{"name": 1},\n', '{ "name" : 1} , '):
        answer = _after(grammar, "[" + style * 3 + style[: style.index("n")])
        drafted = _text(answer.draft(20))
        assert drafted and style[style.index("n") :].encode().startswith(drafted)


def test_a_guess_of_the_scheduler_ends_before_the_first_forbidden_token() -> None:
    def drafted(text: str, guess: str) -> tuple[bytes, str | None]:
        sampler = Sampler(SamplingParams(), grammar=_after(_grammars()[0], text))
        guessed = _VOCAB.tokenize(guess, add_special=False, parse_special=False)
        span = Span(0, 0, [1], sampler, drafting=Drafting([], draft_params(lookup=8)), draft=guessed)
        span.draft_source = "ngram"
        draft_by_grammar([span])
        return _text(span.draft), span.draft_source

    start = '{"customer_name": "'
    assert drafted(start, 'abba", "other') == (b'abba", "', "ngram")
    assert drafted(start, "other") == (b"", None)
    assert drafted('{"', "customer_other") == (b"customer_name", "grammar")
    assert drafted('{"', "cus") == (b"customer_name", "grammar")
    assert drafted('{"', 'customer_name": "abab') == (b'customer_name": "abab', "ngram")


def test_a_grammar_that_fails_while_drafting_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("paddock.engine.grammar.draft_forced", fail)
    samplers = [Sampler(SamplingParams(), grammar=_grammars()[2].fork()) for _ in range(2)]
    spans = [Span(n, 0, [1], sampler) for n, sampler in enumerate(samplers)]
    spans[0].drafting = Drafting([], draft_params(lookup=8))
    draft_by_grammar(spans)
    failed, other = _Outputs(np.zeros((2, _N_VOCAB), np.float32)).sample(spans)
    assert failed is not None and failed.error is not None and failed.error.code == "sampling_failed"
    assert other is not None and other.error is None


# ── drafts change nothing ────────────────────────────────────────────────────────────────────────────────────────────


class _Outputs(Outputs):
    """The outputs of a step with these logits."""

    def __init__(self, rows: Logits) -> None:
        super().__init__(None, _N_VOCAB)
        self._rows = rows

    def _logits(self, rows: int) -> Logits:
        assert rows == len(self._rows)
        return self._rows


def _row(seed: int, path: list[int]) -> Logits:
    """The logits after these tokens. Some tokens are likely everywhere, so that grammars and guesses meet often."""
    rng = np.random.default_rng([seed, *path])
    row: Logits = rng.normal(0, 2, _N_VOCAB).astype(np.float32)
    row[list(b'ab{"}') + list(range(_END, _N_VOCAB))] += 3
    return row


def _sampler(params: SamplingParams, grammar: Grammar | None) -> Sampler:
    return Sampler(
        params,
        [*b"a prompt"],
        end_tokens=_Vocab.end_tokens,
        breakers=lambda _: frozenset(b"\n"),
        grammar=None if grammar is None else grammar.fork(),
    )


def _is_over(sampled: Sampled) -> bool:
    return sampled.error is not None or sampled.last or sampled.token in _Vocab.end_tokens


def _state(sampler: Sampler) -> Any:
    adaptive = sampler._adaptive and vars(sampler._adaptive)
    history = sampler.history._tokens[: len(sampler.history)].tolist()
    mask = None if sampler.grammar is None else sampler.grammar.forbidden().tolist()
    return sampler.drawn, sampler._surprise, adaptive, history, mask


_SIZE = 24
_params = unusual_params(
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    seed=st.integers(0, 2**32),
    n_probs=st.sampled_from([-1, 0, 3]),
    post_sampling_probs=st.booleans(),
    mirostat=st.sampled_from([0, 0, 0, 1, 2]),
    adaptive_target=st.sampled_from([-1.0, -1.0, 0.4]),
    ignore_eos=st.booleans(),
    logit_bias=st.sampled_from([(), ((97, 2.0),), ((97, -math.inf),)]),
)
_case = st.tuples(_params, st.none() | st.integers(0, len(_SOURCES) - 1), st.integers(0, 2**32))


class _Answer:
    """An answer, token by token or with drafts."""

    def __init__(self, params: SamplingParams, grammar: int | None, seed: int) -> None:
        self.sampler = _sampler(params, None if grammar is None else _grammars()[grammar])
        self.seed = seed
        self.chosen: list[Sampled] = []

    @property
    def tokens(self) -> list[int]:
        return [sampled.token for sampled in self.chosen if sampled.token is not None]

    @property
    def is_over(self) -> bool:
        return len(self.chosen) >= _SIZE or bool(self.chosen and _is_over(self.chosen[-1]))

    def span(self, draft: list[int]) -> Span:
        span = Span(0, len(self.chosen), [1], self.sampler, drafting=Drafting([], draft_params(lookup=8)))
        span.draft, span.draft_source = draft, "ngram"
        return span

    def rows(self, draft: list[int]) -> list[Logits]:
        return [_row(self.seed, self.tokens + draft[:n]) for n in range(len(draft) + 1)]

    def add(self, sampled: Sampled | None) -> None:
        assert sampled is not None
        one_by_one = [sampled, *sampled.more]
        for at, one in enumerate(one_by_one):
            # What the scheduler does: an answer that is over takes no more tokens.
            if self.is_over:
                break
            self.chosen.append(Sampled(one.token, one.logprobs, last=one.last, error=one.error))
            assert at == len(one_by_one) - 1 or not one.last


def _draw_draft(data: st.DataObject, expected: list[int]) -> list[int]:
    """Right tokens, then wrong ones, or neither. Drafts have no end tokens."""
    right = data.draw(st.integers(0, 6))
    wrong = data.draw(st.lists(st.integers(0, _N_VOCAB - 1), max_size=3))
    return [token for token in expected[:right] + wrong if token != _END]


def _check(cases: list[tuple[SamplingParams, int | None, int]], data: st.DataObject) -> None:
    plain = [_Answer(*case) for case in cases]
    states: list[list[Any]] = [[] for _ in cases]
    for answer, seen in zip(plain, states, strict=True):
        while not answer.is_over:
            with np.errstate(all="ignore"):
                answer.add(_Outputs(np.stack(answer.rows([]))).sample([Span(0, 0, [1], answer.sampler)])[0])
            seen.append(None if answer.chosen[-1].error else _state(answer.sampler))
    drafting = [_Answer(*case) for case in cases]
    while active := [index for index, answer in enumerate(drafting) if not answer.is_over]:
        spans = []
        for index in active:
            expected = plain[index].tokens[len(drafting[index].chosen) :]
            spans.append(drafting[index].span(_draw_draft(data, expected)))
        if data.draw(st.booleans()):
            draft_by_grammar(spans)
        for index, span in zip(active, spans, strict=True):
            span.draft = span.draft[: _SIZE - len(drafting[index].chosen) - 1]
        rows = [drafting[index].rows(span.draft) for index, span in zip(active, spans, strict=True)]
        results = _Outputs(np.stack([row for some in rows for row in some])).sample(spans)
        for index, result in zip(active, results, strict=True):
            answer = drafting[index]
            answer.add(result)
            if answer.chosen[-1].error is None and answer.chosen[-1].token not in _Vocab.end_tokens:
                assert _state(answer.sampler) == states[index][len(answer.chosen) - 1]
    for one, other in zip(plain, drafting, strict=True):
        assert [(c.token, c.logprobs, c.last, repr(c.error)) for c in one.chosen] == [
            (c.token, c.logprobs, c.last, repr(c.error)) for c in other.chosen
        ]


_cases = given(st.lists(_case, min_size=1, max_size=3), st.data())


@_cases
def test_an_answer_is_the_same_with_any_drafts(
    cases: list[tuple[SamplingParams, int | None, int]], data: st.DataObject
) -> None:
    """Tokens, log-probabilities and the state of the sampler."""
    _check(cases, data)


@full
@examples(1000)
@_cases
def test_many_answers_with_any_drafts(cases: list[tuple[SamplingParams, int | None, int]], data: st.DataObject) -> None:
    _check(cases, data)


@given(st.integers(0, len(_SOURCES) - 1), st.integers(0, 2**32), st.data())
def test_looking_ahead_does_not_change_what_a_grammar_allows(grammar: int, seed: int, data: st.DataObject) -> None:
    """Also where a draft completes the grammar. The twin never looks ahead."""
    looking, twin = _grammars()[grammar].fork(), _grammars()[grammar].fork()._matcher
    for step in range(_SIZE):
        draft = looking.draft(data.draw(st.integers(0, 9)))
        assert _END not in draft and looking.allowed(draft) == len(draft)
        guess = data.draw(st.lists(st.integers(0, _N_VOCAB - 1), max_size=4))
        assert 0 <= looking.allowed(guess) <= len(guess)
        allowed = np.flatnonzero(~looking.forbidden())
        bits = np.frombuffer(twin.compute_bitmask(), np.uint8)
        assert np.array_equal(allowed, np.flatnonzero(np.unpackbits(bits, count=_N_VOCAB, bitorder="little")))
        if not len(allowed):
            break
        row = _row(seed, [step])
        token = int(allowed[row[allowed].argmax()])
        assert looking.consume(token) == twin.consume_token(token)
        if token == _END or looking.complete:
            break


# ── a real engine ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "streams"])
@pytest.mark.parametrize("kind", ["llama", "sliding_window"])
def test_a_model_answers_the_same_with_fewer_steps(tiny_models: dict[str, Path], kind: str, kv_unified: bool) -> None:
    source = 'root ::= ("the customer lives at " [a-z]{4} ", and the order is " ("pending" | "shipped") ". ")+'
    # Without rounding to half precision a step of another shape gives the same text.
    exact = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32", "n_threads": 1}
    harness = Harness(tiny_models[kind], kv_unified=kv_unified, **exact)
    grammar = harness.engine.grammars.compile(Constraint("gbnf", source, "grammar"))
    asked: dict[str, Any] = {"max_tokens": 150, "temperature": 0.8, "grammar": grammar}
    expected = [harness.alone(id, "the horse", **asked) for id in range(2)]
    requests = [harness.ask(id, "the horse", **asked, draft=draft_params(lookup=16, priced=False)) for id in range(2)]
    steps = 0
    while harness.step():
        steps += 1
    assert [harness.answers[id] for id in range(2)] == expected
    # Guesses from earlier text are made too, and some of them are wrong.
    assert all(request.accepted > 40 for request in requests)
    assert steps < 110
    harness.close()

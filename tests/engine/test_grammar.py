"""Token masks of constraints, against brute force over small languages, and with the sampler."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import grammar as module
from paddock.engine.fake_vocab import FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.grammar_tables import build_tokenizer
from paddock.engine.sampler import Sampler
from paddock.errors import InvalidRequest
from paddock.types import Constraint, SamplingParams
from tests.engine.sampling import choose_all

_END = 0
_PIECES = [b"", b"a", b"b", b"c", b"ab", b"ba", b"abc", b"bb", b"cab", b""]


class _Vocab(FakeVocab):
    """Tokens of several letters, so that a text has several tokenizations."""

    end_tokens = frozenset({_END})

    def piece(self, token: int) -> bytes:
        return _PIECES[token]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [_PIECES.index(letter.encode()) for letter in text]


def _forced(words: list[str], text: str) -> bool:
    """Whether only one continuation is possible. llguidance then expects the tokenizer's own tokens."""
    return text not in words and len({word[len(text)] for word in words if word.startswith(text)}) == 1


SOURCE = GrammarSource(_Vocab(), len(_PIECES))
BYTES = GrammarSource(FakeVocab(), 260)
BYTES_END = min(FakeVocab.end_tokens)

_words = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=5, unique=True)


def _compile(kind: Literal["json_schema", "regex", "gbnf", "lark"], source: str, to: GrammarSource = SOURCE) -> Grammar:
    return to.compile(Constraint(kind, source, "grammar"))


def _languages(words: list[str]) -> list[Grammar]:
    """The same finite language in three notations."""
    return [
        _compile("regex", "|".join(words)),
        _compile("gbnf", "root ::= " + " | ".join(f'"{word}"' for word in words)),
        _compile("lark", "%llguidance {}\nstart: " + " | ".join(f'"{word}"' for word in words)),
    ]


def _allowed(words: list[str], text: str) -> set[int]:
    """By brute force: every token after which one of the words is still possible."""
    found = {
        token
        for token, piece in enumerate(_PIECES)
        if piece and any(w.startswith(text + piece.decode()) for w in words)
    }
    return found | ({_END} if text in words else set())


@given(_words, st.data())
def test_a_mask_agrees_with_brute_force_at_every_step(words: list[str], data: st.DataObject) -> None:
    for grammar in _languages(words):
        text = ""
        while not grammar.complete:
            allowed = set(np.flatnonzero(~grammar.forbidden()).tolist())
            possible = _allowed(words, text)
            assert allowed == possible if not _forced(words, text) else set() < allowed <= possible
            token = data.draw(st.sampled_from(sorted(allowed)))
            assert grammar.consume(token)
            if token == _END:
                break
            text += _PIECES[token].decode()
        assert text in words


_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    top_k=st.sampled_from([0, 2, 40]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    mirostat=st.sampled_from([0, 2]),
    n_probs=st.sampled_from([-1, 2]),
    seed=st.integers(0, 2**32),
)


@given(_words, st.lists(st.tuples(_params, st.booleans()), min_size=1, max_size=4), st.integers(0, 2**32))
def test_a_constrained_row_is_sampled_as_if_forbidden_tokens_were_minus_infinity(
    words: list[str], requests: list[tuple[SamplingParams, bool]], seed: int
) -> None:
    """Other rows are sampled as if the constraint did not exist."""
    grammar = _compile("regex", "|".join(words))
    kept = [grammar.fork() if constrained else None for _, constrained in requests]
    batched = [Sampler(params, grammar=grammar) for (params, _), grammar in zip(requests, kept, strict=True)]
    alone = [Sampler(params) for params, _ in requests]
    text = [""] * len(requests)
    for step in range(12):
        rows = np.random.default_rng(seed + step).normal(0, 3, (len(requests), len(_PIECES))).astype(np.float32)
        rows[:, -1] = -50  # a control token, which is unlikely
        expected = rows.copy()
        for index, (_, constrained) in enumerate(requests):
            if constrained:
                constrained_by = batched[index].grammar
                assert constrained_by is not None
                expected[index, constrained_by.fork().forbidden()] = -np.inf
        chosen = choose_all(rows, batched)
        for index, sampled in enumerate(chosen):
            (reference,) = choose_all(expected[index : index + 1], [alone[index]])
            assert sampled.token == reference.token
            assert sampled.token is not None
            text[index] += _PIECES[sampled.token].decode()
        if any(sampled.last or sampled.token == _END for sampled in chosen):
            return


def test_log_probabilities_are_those_before_the_constraint() -> None:
    row = np.zeros((1, len(_PIECES)), np.float32)
    sampler = Sampler(SamplingParams(temperature=0, n_probs=3), grammar=_compile("regex", "bb"))
    (sampled,) = choose_all(row, [sampler])
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen == pytest.approx(-np.log(len(_PIECES)))
    assert [token for token, _ in sampled.logprobs.top] == [0, 1, 2]


def test_the_last_token_is_marked_as_last() -> None:
    (sampled,) = choose_all(
        np.zeros((1, len(_PIECES)), np.float32), [Sampler(SamplingParams(), grammar=_compile("regex", "a"))]
    )
    assert (sampled.token, sampled.last, sampled.error) == (_PIECES.index(b"a"), True, None)


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(repeat_penalty=2)]
)
def test_if_a_bias_forbids_all_tokens_only_that_request_fails(params: SamplingParams) -> None:
    impossible = SamplingParams(
        temperature=params.temperature,
        repeat_penalty=params.repeat_penalty,
        logit_bias=tuple((token, -np.inf) for token in range(len(_PIECES))),
    )
    rows = np.zeros((2, len(_PIECES)), np.float32)
    failed, other = choose_all(rows, [Sampler(impossible, grammar=_compile("regex", "ab")), Sampler(params)])
    assert failed.token is None and failed.error is not None
    assert other.token is not None and other.error is None


def test_a_fork_is_independent() -> None:
    one = _compile("regex", "ab|ba")
    other = one.fork()
    assert one.consume(_PIECES.index(b"a"))
    assert set(np.flatnonzero(~other.forbidden())) == _allowed(["ab", "ba"], "")


def test_gbnf_escapes_of_code_points() -> None:
    grammar = _compile("gbnf", r'root ::= "\u00e9\x41\u0041" [\u4e00-\u4e10] "\U0001F40E" "\\u0041"', BYTES)
    for byte in "éAA一🐎\\u0041".encode():
        assert grammar.consume(byte)
    assert grammar.complete


def test_json_has_bounded_whitespace() -> None:
    grammar = _compile("json_schema", "{}", BYTES)
    for byte in b"[  ":
        possible = grammar.consume(byte)
    assert not possible


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
        ("json_schema", {"not": {"type": "string"}}, "not"),
        ("json_schema", {"if": {}, "then": {}, "else": {}}, "if"),
        ("json_schema", {"type": "elephant"}, "elephant"),
        ("json_schema", {"type": "string", "format": "uri-template"}, "uri-template"),
        ("json_schema", {"type": "string", "pattern": "("}, "unclosed group"),
        ("json_schema", {"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ("json_schema", {"$ref": "#/$defs/nowhere"}, "nowhere"),
        ("json_schema", {"$ref": "http://example.com/schema"}, "example.com"),
        ("json_schema", {"x-guidance": {"lenient": True}, "uniqueItems": True}, "x-guidance"),
        ("json_schema", False, "nothing"),
        ("json_schema", {"$ref": "#"}, "nothing satisfies it"),
        ("json_schema", {"enum": ["x" * 140_000]}, "131072"),
        ("json_schema", {"$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(900)}}, "definitions"),
        ("regex", "[0-9", "unclosed"),
        ("regex", "(?=a)b", "regex"),
        ("gbnf", 'start ::= "a"', "root"),
        ("gbnf", "root ::= missing", "missing"),
        ("gbnf", 'root ::= "a', "end of input"),
        ("gbnf", r'root ::= "\ud800"', "not a character"),
        ("gbnf", "root ::= root", "nothing satisfies it"),
        ("gbnf", "root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "nested"),
        ("lark", "%llguidance {}\nstart: missing", "missing"),
        ("lark", "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(2500)) + 'r2500: "a"', "definitions"),
    ],
)  # fmt: skip
def test_a_constraint_that_cannot_be_enforced_is_refused_with_the_reason(kind: Any, source: Any, reason: str) -> None:
    text = json.dumps(source) if kind == "json_schema" else source
    with pytest.raises(InvalidRequest, match=reason) as refused:
        BYTES.compile(Constraint(kind, text, "response_format"))
    assert refused.value.param == "response_format"
    assert refused.value.message.startswith("response_format cannot be enforced: ")


def test_no_invalid_example_of_the_official_suite_is_accepted() -> None:
    """This checks every schema of the suite that can be compiled."""
    models = os.environ.get("PADDOCK_TEST_MODELS")
    folder = Path(models).parent / "json-schema-suite" / "tests" / "draft2020-12" if models else None
    if folder is None or not folder.is_dir():
        pytest.skip("no JSON-Schema test suite beside PADDOCK_TEST_MODELS")
    compiled = 0
    for file in sorted(folder.glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            try:
                grammar = _compile("json_schema", json.dumps(group["schema"]), BYTES)
            except InvalidRequest:
                continue
            compiled += 1
            for example in group["tests"]:
                state = grammar.fork()
                accepted = all(state.consume(byte) for byte in json.dumps(example["data"], ensure_ascii=False).encode())
                complete = accepted and (state.complete or not state.forbidden()[BYTES_END])
                assert example["valid"] or not complete, (file.name, group["description"], example)
    assert compiled > 150


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"patternProperties": {f"^{number}-": {} for number in range(65)}}, "65 patternProperties; the limit is 64"),
        (
            {"allOf": [{"patternProperties": {f"^{n}{m}-": {} for m in range(40)}} for n in "ab"]},
            "80 patternProperties",
        ),
        ({"type": "integer", "multipleOf": 999983}, "999983; the limit is 50000"),
        ({"items": [{"multipleOf": 0.30011}, {"multipleOf": 29989}]}, "60000; the limit is 50000"),
    ],
)
def test_a_schema_that_would_take_minutes_is_refused_at_once(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        _compile("json_schema", json.dumps(schema), BYTES)


@pytest.mark.parametrize("multiple", [0.01, 5, 86400, 1000000, 1e-5])
def test_common_multiples_are_compiled(multiple: float) -> None:
    assert not _compile("json_schema", json.dumps({"type": "number", "multipleOf": multiple}), BYTES).problem


def test_the_tables_of_a_vocabulary_are_built_once_for_concurrent_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[object] = []

    def build(*args: Any, **options: Any) -> object:
        built.append(args)
        return real(*args, **options)

    real = build_tokenizer
    monkeypatch.setattr(module, "build_tokenizer", build)
    source = GrammarSource(FakeVocab(), 260)
    with ThreadPoolExecutor(4) as threads:
        compiled = list(threads.map(lambda _: source.compile(Constraint("regex", "a+", "regex")), range(8)))
    assert len(built) == 1 and len(compiled) == 8

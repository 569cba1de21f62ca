"""The tables of llguidance, built without Python's lock, are those that its Python package builds."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from paddock.engine import grammar_tables
from paddock.engine.grammar_tables import build_tokenizer, is_lock_free
from tests.tiers import examples, full

_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kind": {"enum": ["aa", "ab"]}, "tags": {"items": {"type": "integer"}}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
_GRAMMARS = (
    LLMatcher.grammar_from_json_schema(json.dumps(_SCHEMA)),
    LLMatcher.grammar_from_regex(r"(ab|é)+c{2,5}"),
    LLMatcher.grammar_from_lark('start: "a" "bcd" | "é\\n"'),
)


class _Vocabulary:
    """All bytes, then these texts, then a special token."""

    bos_token_id = None

    def __init__(self, texts: list[bytes]) -> None:
        self.tokens = [bytes([byte]) for byte in range(255)] + texts + [b"\xff<|end|>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


_texts = st.lists(
    st.sampled_from([b"ab", b"abc", b"bcd", b'{"', b'":', b'"name"', b" ", b"\x00", b"\xc3\xa9\n", b"a\x00b", b"12"]),
    unique=True,
)


def test_this_release_of_llguidance_is_known() -> None:
    """If this fails after an update: compare `LLTokenizer` and `LlgTokenizer` in its source, then add the version."""
    assert is_lock_free()


@full
@examples(100)
@given(_texts, st.sampled_from(_GRAMMARS), st.sets(st.integers(0, 254), max_size=3), st.data())
def test_masks_are_those_of_the_python_package(
    texts: list[bytes], grammar: str, ends: set[int], data: st.DataObject
) -> None:
    vocabulary = _Vocabulary(texts)
    end_tokens = sorted({vocabulary.eos_token_id, *ends})
    expected = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=end_tokens)
    built = build_tokenizer(vocabulary, end_tokens)
    assert (built.vocab_size, built.eos_tokens) == (expected.vocab_size, expected.eos_tokens)
    assert built.tokenize_str("é12\x00") == expected.tokenize_str("é12\x00")
    matchers = [LLMatcher(tokenizer, grammar, log_level=0) for tokenizer in (built, expected)]
    del built, expected  # the matchers keep the tables
    gc.collect()
    for _ in range(8):
        masks = [matcher.compute_bitmask() for matcher in matchers]
        assert masks[0] == masks[1]
        assert matchers[0].compute_ff_tokens() == matchers[1].compute_ff_tokens()
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(masks[0], np.uint8), bitorder="little"))
        if not len(allowed):
            break
        token = int(allowed[data.draw(st.integers(0, len(allowed) - 1))])
        consumed = [matcher.consume_token(token) for matcher in matchers]
        assert consumed[0] == consumed[1]  # not if an end token is also text
        if not consumed[0]:
            break


def test_other_threads_run_while_tables_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    library, building = grammar_tables._library(), threading.Event()

    class Watched:
        llg_free_tokenizer = library.llg_free_tokenizer

        def llg_new_tokenizer_v2(self, *arguments: Any) -> Any:
            building.set()
            built = library.llg_new_tokenizer_v2(*arguments)
            building.clear()
            return built

    monkeypatch.setattr(grammar_tables, "_library", Watched)
    vocabulary = _Vocabulary([b"%x" % (number * 7919) for number in range(100_000)])
    thread = threading.Thread(target=build_tokenizer, args=(vocabulary, [vocabulary.eos_token_id]))
    thread.start()
    while thread.is_alive() and not building.is_set():
        pass  # with the lock held, this thread would not see it
    assert building.is_set()
    thread.join()


def test_without_the_c_api_the_python_package_builds_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_tables, "is_lock_free", lambda: False)
    vocabulary = _Vocabulary([b"ab"])
    assert build_tokenizer(vocabulary, []).eos_tokens == [vocabulary.eos_token_id]


def test_an_error_is_raised() -> None:
    with pytest.raises(ValueError, match="out of range"):
        build_tokenizer(_Vocabulary([]), [1000])

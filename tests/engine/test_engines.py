"""Tests of every engine: the fake, and libllama with the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.engine import Engine, open_engine
from paddock.errors import DecodeFailed, ModelLoadFailed
from paddock.types import Forget, SamplingParams, Span
from tests.options import engine_options

GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module", params=["fake", "llama"])
def engine(request: pytest.FixtureRequest, demo_model: Path) -> Iterator[Engine]:
    path = "fake:" if request.param == "fake" else str(demo_model)
    seen: list[float] = []
    engine = open_engine(path, engine_options(n_ctx=512, n_batch=64, n_threads=2), seen.append)
    assert seen[-1] == 1.0
    yield engine
    engine.close()


def _answer(engine: Engine, prompt: list[int], count: int, chunk: int) -> list[int]:
    engine.apply([Forget(0)])
    sampler = engine.sampler(GREEDY, prompt)
    produced: list[int] = []
    for start in range(0, len(prompt), chunk):
        last = start + chunk >= len(prompt)
        (sampled,) = engine.decode([Span(0, start, prompt[start : start + chunk], sampler if last else None)])
        assert (sampled is not None) == last
    position = len(prompt)
    while sampled is not None and len(produced) < count:
        assert sampled.token is not None
        produced.append(sampled.token)
        (sampled,) = engine.decode([Span(0, position, [sampled.token], sampler)])
        position += 1
    return produced


def _prompt(engine: Engine) -> list[int]:
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    return engine.vocab.tokenize(text, add_special=False, parse_special=True)


def test_a_greedy_answer_is_reproducible(engine: Engine) -> None:
    prompt = _prompt(engine)
    first = _answer(engine, prompt, 8, chunk=64)
    assert first == _answer(engine, prompt, 8, chunk=64)
    assert len(first) == 8


def test_detokenized_text_equals_the_input(engine: Engine) -> None:
    text = "Hello, wörld! 🦙"
    tokens = engine.vocab.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(engine.vocab.piece, tokens)).decode() == text
    assert engine.vocab.longest_piece >= max(len(engine.vocab.piece(token)) for token in tokens)


def test_special_tokens_are_parsed_and_have_no_text(engine: Engine) -> None:
    (token,) = engine.vocab.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert token in engine.vocab.end_tokens
    assert engine.vocab.piece(token) == b""
    assert len(engine.vocab.tokenize("<|im_end|>", add_special=False, parse_special=False)) > 1


def test_the_demo_model_answers_paris(demo_model: Path) -> None:
    engine = open_engine(str(demo_model), engine_options(n_ctx=512, n_threads=2), lambda _: None)
    answer = b"".join(map(engine.vocab.piece, _answer(engine, _prompt(engine), 8, chunk=64))).decode()
    assert "Paris" in answer
    assert engine.info.n_ctx_train == 8192
    engine.close()


def test_a_step_that_would_abort_the_process_is_refused(demo_model: Path) -> None:
    engine = open_engine(str(demo_model), engine_options(n_ctx=256, n_batch=8, n_threads=2), lambda _: None)
    for tokens in ([], [1] * 9, [engine.info.n_vocab], [-1]):
        with pytest.raises(DecodeFailed):
            engine.decode([Span(0, 0, tokens, GREEDY)])
    engine.close()


def test_a_broken_file_or_option_is_refused_with_a_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelLoadFailed, match=r"broken\.gguf"):
        open_engine(str(broken), engine_options(), lambda _: None)
    with pytest.raises(ModelLoadFailed, match="no option 'x'"):
        open_engine("fake:x=1", engine_options(), lambda _: None)

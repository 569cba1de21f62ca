"""Text, finish reason and timings of an answer, token by token, with a simulated clock."""

from __future__ import annotations

from typing import Any

from paddock.engine.fake_vocab import FakeVocab
from paddock.scheduling import Progress, Request
from paddock.types import FinishReason, GenerateRequest, TextPrompt, TimeParts, Timings, TokenLogprobs
from paddock.wire.messages import Delta
from paddock.worker.answers import Answer


class _Generation:
    def __init__(self, **fields: Any) -> None:
        self.request = Request(1, list(b"hello"), None, 100)
        self.answer = Answer(GenerateRequest(TextPrompt("hello"), **fields), FakeVocab())

    def add(self, letter: str | None, now: float, finish: FinishReason | None = None, **more: Any) -> Delta | None:
        token = None if letter is None else ord(letter)
        if token is not None:
            self.request.tokens.append(token)
        produced = self.request.produced
        return self.answer.advance(Progress(self.request, token, finish, produced=produced, **more), now)


def _last(delta: Delta | None) -> Delta:
    assert delta is not None
    return delta


def test_prompt_time_ends_and_generation_time_begins_with_the_first_token() -> None:
    generation = _Generation()
    generation.answer.clock.begin(10.0)
    generation.answer.clock.begin(11.0)
    assert _last(generation.add("a", 12.5)).timings is None
    last = _last(generation.add(None, 14.0, "stop"))
    parts = TimeParts(queue=10.0, prefill=2.5, decode=1.5)
    assert last.timings == Timings(prompt=2.5, generation=1.5, parts=parts)
    assert last.usage is not None
    assert last.usage.completion_tokens == 2, "with the end token"


def test_timings_per_token() -> None:
    generation = _Generation(timings_per_token=True)
    generation.answer.clock.begin(1.0)
    first = _last(generation.add("a", 2.0))
    assert first.timings == Timings(prompt=1.0, generation=0.0)
    assert first.usage is not None and first.usage.completion_tokens == 1


def test_an_answer_over_its_time_limit_ends_at_the_next_line() -> None:
    generation = _Generation(max_seconds=1.0)
    assert _last(generation.add("a", 0.0)).finish is None
    assert _last(generation.add("b", 5.0)).finish is None, "it has no complete line yet"
    assert not generation.answer.is_stopped
    assert _last(generation.add("\n", 6.0)).finish == "length"
    assert generation.answer.is_stopped


def test_the_last_delta_names_the_stop_string() -> None:
    generation = _Generation(stop=("zz", "cd"))
    deltas = [generation.add(letter, 0.0) for letter in "abcd"]
    assert deltas[2] is None, "it may be the beginning of a stop string"
    last = _last(deltas[-1])
    assert (last.finish, last.stop_string, last.text) == ("stop", "cd", "")


def test_returned_tokens_include_those_whose_text_was_held_back() -> None:
    generation = _Generation(stop=("cd",), return_tokens=True)
    deltas = [delta for letter in "abcx" if (delta := generation.add(letter, 0.0)) is not None]
    assert [delta.tokens for delta in deltas] == [[97], [98], [99, 120]]


def test_prompt_logprobs_come_with_the_first_delta() -> None:
    generation = _Generation(stop=("x",), prompt_probs=0)
    logprobs = [TokenLogprobs(-float(at), []) for at in range(4)]
    assert generation.add(None, 0.0, prompt=logprobs[:2]) is None
    first = _last(generation.add("x", 0.0, prompt=logprobs[2:]))
    assert first.prompt_logprobs is not None
    assert [(item.piece, item.logprob) for item in first.prompt_logprobs] == [
        (b"e", 0.0),
        (b"l", -1.0),
        (b"l", -2.0),
        (b"o", -3.0),
    ]


def test_an_answer_without_tokens() -> None:
    last = _last(_Generation().add(None, 0.0, "length"))
    assert last.usage is not None
    assert (last.usage.completion_tokens, last.finish) == (0, "length")

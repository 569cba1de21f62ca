"""An answer's text, ending and times, token by token, with a clock of the test's own."""

from __future__ import annotations

from typing import Any

from paddock.engine.fake_vocab import FakeVocab
from paddock.scheduling import Progress, Request
from paddock.types import FinishReason, GenerateRequest, TextPrompt, Timings, TokenLogprobs
from paddock.wire import Delta
from paddock.worker.answers import Answer


class _Speaker:
    def __init__(self, **fields: Any) -> None:
        self.request = Request(1, list(b"hello"), None, 100)
        self.answer = Answer(GenerateRequest(TextPrompt("hello"), **fields), FakeVocab())

    def say(self, letter: str | None, now: float, finish: FinishReason | None = None, **more: Any) -> Delta | None:
        token = None if letter is None else ord(letter)
        if token is not None:
            self.request.tokens.append(token)
        produced = self.request.produced
        return self.answer.advance(Progress(self.request, token, finish, produced=produced, **more), now)


def _last(delta: Delta | None) -> Delta:
    assert delta is not None
    return delta


def test_times_run_from_the_prompts_first_step_to_the_first_token_and_from_there() -> None:
    speaker = _Speaker()
    speaker.answer.clock.begin(10.0)
    speaker.answer.clock.begin(11.0)
    assert _last(speaker.say("a", 12.5)).timings is None
    last = _last(speaker.say(None, 14.0, "stop"))
    assert last.timings == Timings(prompt=2.5, generation=1.5)
    assert last.usage is not None
    assert last.usage.completion_tokens == 2, "the one that ended it counts"


def test_timings_with_every_token_where_asked_for() -> None:
    speaker = _Speaker(timings_per_token=True)
    speaker.answer.clock.begin(1.0)
    first = _last(speaker.say("a", 2.0))
    assert first.timings == Timings(prompt=1.0, generation=0.0)
    assert first.usage is not None and first.usage.completion_tokens == 1


def test_an_answer_whose_time_is_over_ends_with_its_next_line() -> None:
    speaker = _Speaker(max_seconds=1.0)
    assert _last(speaker.say("a", 0.0)).finish is None
    assert _last(speaker.say("b", 5.0)).finish is None, "there has been no line yet"
    assert not speaker.answer.stopped
    assert _last(speaker.say("\n", 6.0)).finish == "length"
    assert speaker.answer.stopped


def test_the_stop_string_that_was_met_is_named() -> None:
    speaker = _Speaker(stop=("zz", "cd"))
    deltas = [speaker.say(letter, 0.0) for letter in "abcd"]
    assert deltas[2] is None, "it might have become a stop string"
    last = _last(deltas[-1])
    assert (last.finish, last.stop_string, last.text) == ("stop", "cd", "")


def test_tokens_come_along_where_asked_for_also_those_held_back() -> None:
    speaker = _Speaker(stop=("cd",), return_tokens=True)
    deltas = [delta for letter in "abcx" if (delta := speaker.say(letter, 0.0)) is not None]
    assert [delta.tokens for delta in deltas] == [[97], [98], [99, 120]]


def test_a_prompts_probabilities_are_gathered_and_come_first() -> None:
    speaker = _Speaker(stop=("x",), prompt_probs=0)
    opinions = [TokenLogprobs(-float(at), []) for at in range(4)]
    assert speaker.say(None, 0.0, prompt=opinions[:2]) is None
    first = _last(speaker.say("x", 0.0, prompt=opinions[2:]))
    assert first.prompt_logprobs is not None
    assert [(item.piece, item.logprob) for item in first.prompt_logprobs] == [
        (b"e", 0.0),
        (b"l", -1.0),
        (b"l", -2.0),
        (b"o", -3.0),
    ]


def test_no_tokens_at_all_are_no_tokens() -> None:
    last = _last(_Speaker().say(None, 0.0, "length"))
    assert last.usage is not None
    assert (last.usage.completion_tokens, last.finish) == (0, "length")

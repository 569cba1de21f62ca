"""The answers of the fake engine: the next token as a function of the tokens so far."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from paddock.engine.fake_vocab import END, EOS, N_VOCAB, START
from paddock.engine.grammar import Grammar
from paddock.errors import ConstraintFailed
from paddock.types import Adapters, Sampled, SamplingParams, TokenLogprobs

_WORDS = (
    *("a", "the", "one", "grey", "brown", "quick", "horse", "mare", "foal", "runs", "stands", "grazes", "sleeps"),
    *("by", "under", "near", "gate", "oak", "brook", "hill"),
)
_ANSWER_WORDS = 40
_FAIL_AFTER = 8
"""Bytes of the answer before `crash:`, `raise:` and `break:` act."""


class StepFailed(Exception):
    """Fails a whole step, as a failed decode does."""


@dataclass(slots=True)
class FakeSampler:
    params: SamplingParams
    grammar: Grammar | None = None
    forced: list[int] = field(default_factory=list)
    may_hang: bool = False
    step_limit: int | None = None

    def sibling(self, params: SamplingParams) -> FakeSampler:
        return FakeSampler(params, None if self.grammar is None else self.grammar.fork(), may_hang=self.may_hang)

    def force(self, tokens: Sequence[int]) -> None:
        self.forced += tokens

    def choose(self, history: list[int], adapters: Adapters) -> Sampled:
        if self.may_hang and _last_question(history).startswith(b"hang:"):
            hang()
        token = self.forced.pop(0) if self.forced else next_token(history, self.params, adapters)
        if self.grammar is None:
            return Sampled(token, self._logprobs(history, token))
        forbidden = self.grammar.forbidden()
        simple = (token, EOS, *b'"}]0', *range(256))
        token = next((token for token in simple if not forbidden[token]), token)
        if not self.grammar.consume(token):
            problem = self.grammar.problem or "it allows no token here"
            return Sampled(None, error=ConstraintFailed(f"the answer cannot match its grammar: {problem}"))
        return Sampled(token, self._logprobs(history, token), last=self.grammar.complete)

    def _logprobs(self, history: list[int], token: int) -> TokenLogprobs | None:
        return None if self.params.n_probs < 0 else fake_logprobs(history, token, self.params.n_probs)


def next_token(history: list[int], sampling: SamplingParams, adapters: Adapters) -> int:
    start = max((index for index, token in enumerate(history) if token == START), default=-1)
    role, _, reply = _bytes(history[start + 1 :]).partition(b"\n")
    if start < 0 or role != b"assistant":
        return _continuation(history, adapters)
    prompt = history[:start]
    question = _last_message(prompt)
    if len(reply) >= _FAIL_AFTER:
        _fail_on_request(question)
    answer = _answer(prompt, question, sampling, adapters)
    return answer[len(reply)] if len(reply) < len(answer) else END


def hang() -> None:
    """Never return. Other threads continue, as they do when native code hangs."""
    threading.Event().wait()


def fake_logprobs(history: list[int], token: int, count: int) -> TokenLogprobs:
    """A log-probability of the token after this history, and those of the `count` tokens from it on."""

    def logprob(token: int) -> float:
        return -1 - hashlib.sha256(repr([*history, token]).encode()).digest()[0] / 64

    others = [(token + step) % N_VOCAB for step in range(count)]
    return TokenLogprobs(logprob(token), sorted(((id, logprob(id)) for id in others), key=lambda pair: -pair[1]))


def _fail_on_request(question: bytes) -> None:
    if question.startswith(b"crash:"):
        os.abort()
    if question.startswith(b"raise:"):
        raise RuntimeError("the prompt asks the fake sampler to fail")
    if question.startswith(b"break:"):
        raise StepFailed("the prompt asks the fake engine to fail")


def _continuation(history: list[int], adapters: Adapters) -> int:
    """Text without chat markers continues with letters hashed from all of it, up to the next multiple of 64 tokens."""
    if len(history) % 64 == 0:
        return EOS
    digest = hashlib.sha256(f"{history}{adapters or ''}".encode()).digest()
    return b"abcdefghijklmnopqrstuvwxyz "[digest[0] % 27]


def _last_message(prompt: list[int]) -> bytes:
    start = max((index for index, token in enumerate(prompt) if token == START), default=-1)
    return _bytes(prompt[start + 1 :]).partition(b"\n")[2].removesuffix(b"\n")


def _last_question(history: list[int]) -> bytes:
    """The message before the reply that is being generated."""
    start = max((index for index, token in enumerate(history) if token == START), default=0)
    return _last_message(history[:start])


def _bytes(tokens: list[int]) -> bytes:
    return bytes(token for token in tokens if token < 256)


def _answer(prompt: list[int], question: bytes, sampling: SamplingParams, adapters: Adapters) -> bytes:
    if question.startswith(b"say: "):
        return question.removeprefix(b"say: ")
    seed = sampling.seed if sampling.temperature > 0 else 0
    key = hashlib.sha256(f"{seed}:{prompt}{adapters or ''}".encode()).digest() * 2
    return " ".join(_WORDS[byte % len(_WORDS)] for byte in key[:_ANSWER_WORDS]).encode()

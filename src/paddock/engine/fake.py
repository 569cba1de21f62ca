"""A model without weights, shipped for tests and for trying the server: `paddock serve -m fake:`.

It keeps each sequence's tokens as a real engine keeps keys and values, and answers from what it finds there, so a
scheduler that loses or mixes up cache produces different text. Its vocabulary is bytes and four special tokens.

What the last message says decides the answer:
- `say: WORDS` is answered with WORDS, byte for byte;
- `crash: …` aborts the process in the middle of the answer, as a native assertion does;
- anything else gets words drawn from a hash of the whole conversation and the seed.
The path's options tune it: `fake:delay=0.05,n_ctx=512` waits that long in each step and has that context;
`load=3` takes so many seconds to load; `sigill=1` dies while loading unless it is told not to repack.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from paddock.errors import ModelLoadFailed
from paddock.types import EngineOptions, ModelInfo, SamplingParams, Span

SCHEME = "fake:"
_OPTIONS = ("delay", "load", "n_ctx", "sigill")
_SPECIAL = {"<s>": 256, "</s>": 257, "<|im_start|>": 258, "<|im_end|>": 259}
_BOS, _EOS, _START, _END = 256, 257, 258, 259
_WORDS = (
    *("a", "the", "one", "grey", "brown", "quick", "horse", "mare", "foal", "runs", "stands", "grazes", "sleeps"),
    *("by", "under", "near", "gate", "oak", "brook", "hill"),
)
_ANSWER_WORDS = 40
_CRASH_AFTER = 8


class FakeVocab:
    chat_template: str | None = None
    bos = "<s>"
    eos = "</s>"
    adds_bos = True
    end_tokens = frozenset({_EOS, _END})
    longest_piece = max(map(len, _SPECIAL))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [_BOS] if add_special else []
        while text:
            name = next((name for name in _SPECIAL if parse_special and text.startswith(name)), None)
            if name is not None:
                tokens.append(_SPECIAL[name])
                text = text[len(name) :]
            else:
                tokens.extend(text[0].encode("utf-8"))
                text = text[1:]
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


class FakeEngine:
    """Implements `Engine`."""

    def __init__(self, path: str, options: EngineOptions, on_progress: Callable[[float], None]) -> None:
        settings = _parse(path)
        if settings.get("sigill") and options.repack:
            os.kill(os.getpid(), signal.SIGILL)
        time.sleep(settings.get("load", 0.0))
        on_progress(1.0)
        self.vocab = FakeVocab()
        self.n_batch = options.n_batch
        self._delay = settings.get("delay", 0.0)
        self._tokens: dict[int, list[int]] = {}
        self.info = ModelInfo(
            description="fake",
            n_ctx=int(settings.get("n_ctx", min(options.n_ctx, 8192))),
            n_ctx_train=8192,
            n_vocab=260,
            n_params=0,
            size_bytes=0,
        )

    def decode(self, spans: Sequence[Span]) -> list[int | None]:
        if self._delay:
            time.sleep(self._delay)
        return [self._advance(span) for span in spans]

    def forget(self, sequence: int, start: int = 0) -> None:
        del self._tokens.setdefault(sequence, [])[start:]

    def close(self) -> None:
        self._tokens.clear()

    def _advance(self, span: Span) -> int | None:
        history = self._tokens.setdefault(span.sequence, [])
        if span.start != len(history):
            raise AssertionError(f"sequence {span.sequence} holds {len(history)} tokens, not {span.start}")
        history.extend(span.tokens)
        return None if span.sampling is None else _next_token(history, span.sampling)


def _next_token(history: list[int], sampling: SamplingParams) -> int:
    start = max((index for index, token in enumerate(history) if token == _START), default=-1)
    role, _, said = _bytes(history[start + 1 :]).partition(b"\n")
    if start < 0 or role != b"assistant":
        return _continuation(history)
    prompt = history[:start]
    question = _last_message(prompt)
    if question.startswith(b"crash:") and len(said) >= _CRASH_AFTER:
        os.abort()
    answer = _answer(prompt, question, sampling)
    return answer[len(said)] if len(said) < len(answer) else _END


def _continuation(history: list[int]) -> int:
    """Text that is no conversation goes on with letters hashed from all of it, up to the next multiple of 64."""
    if len(history) % 64 == 0:
        return _EOS
    digest = hashlib.sha256(repr(history).encode()).digest()
    return b"abcdefghijklmnopqrstuvwxyz "[digest[0] % 27]


def _last_message(prompt: list[int]) -> bytes:
    start = max((index for index, token in enumerate(prompt) if token == _START), default=-1)
    return _bytes(prompt[start + 1 :]).partition(b"\n")[2].removesuffix(b"\n")


def _bytes(tokens: list[int]) -> bytes:
    return bytes(token for token in tokens if token < 256)


def _answer(prompt: list[int], question: bytes, sampling: SamplingParams) -> bytes:
    if question.startswith(b"say: "):
        return question.removeprefix(b"say: ")
    seed = sampling.seed if sampling.temperature > 0 else 0
    key = hashlib.sha256(f"{seed}:{prompt}".encode()).digest() * 2
    return " ".join(_WORDS[byte % len(_WORDS)] for byte in key[:_ANSWER_WORDS]).encode()


def _parse(path: str) -> dict[str, float]:
    """`fake:` and its options, `name=number` pairs between commas."""
    options: dict[str, float] = {}
    for pair in filter(None, path.removeprefix(SCHEME).split(",")):
        name, _, value = pair.partition("=")
        try:
            options[name] = float(value)
        except ValueError:
            raise ModelLoadFailed(f"the fake engine does not understand {pair!r}") from None
        if name not in _OPTIONS:
            raise ModelLoadFailed(f"the fake engine has no option {name!r}; it has {', '.join(_OPTIONS)}")
    return options

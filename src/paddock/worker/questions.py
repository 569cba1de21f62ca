"""Answers questions about text (tokenize, detokenize, apply a template) from the vocabulary, without the engine.

A question is answered in bounded pieces (`fair_threads.py`), so that a short question waits for at most one piece of
another key's long one. Long texts have a thread of their own: tokenising one is a single call that cannot be split.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import msgspec

from paddock.engine import Engine, PooledEngine
from paddock.errors import InvalidRequest, PaddockError, QueueFull
from paddock.types import ChatPrompt, CountTokens, Detokenize, Render, TextQuestion, Tokenize
from paddock.wire.messages import Problem, Refused, Text, Tokens, TokensPart
from paddock.worker.fair_threads import FairThreads
from paddock.worker.prompts import PromptReader
from paddock.worker.tokens import check_tokens

_LONG = 1 << 16
"""A question with more characters or tokens goes to the thread for long ones."""
_PIECE = 1024
"""Tokens that are converted, or parts that are tokenised, in one piece of work."""
_PART = 1 << 18
"""Bytes of an answer that are sent at once."""
_MAX_ANSWER = 8 << 20
"""Bytes of a detokenised or rendered text."""
_MAX_QUESTIONS = 256
"""Waiting questions of one key."""
_MAX_SIZE = 8 << 20
"""Characters and tokens of the waiting questions of one key."""

Answer = TokensPart | Tokens | Text | Refused


class TokenPiece(msgspec.Struct):
    id: int
    piece: str | list[int]
    """Its text, or its bytes if they are not valid UTF-8."""


class TextQuestions:
    """Every question is answered by one message, after any number of `TokensPart`s."""

    def __init__(
        self,
        engine: Engine | PooledEngine,
        prompts: PromptReader,
        send: Callable[[Answer], None],
        send_behind: Callable[[Answer], None],
    ) -> None:
        """`send_behind` is for large messages, and may block."""
        self._vocab = engine.vocab
        self._n_vocab = engine.info.n_vocab
        self._prompts = prompts
        self._send = send
        self._send_behind = send_behind
        self._short = FairThreads("questions")
        self._long = FairThreads("long-questions")
        # Cached, because looking up names holds the GIL, which the engine thread needs.
        self._name = cache(engine.vocab.name)
        self._entry = cache(self._encode_entry)

    def begin(self, id: int, question: TextQuestion) -> None:
        size = _size(question)
        thread = self._long if size > _LONG else self._short
        count, held = map(sum, zip(*(thread.held_by(question.origin.key) for thread in self._threads), strict=True))
        if count and (count >= _MAX_QUESTIONS or held + size > _MAX_SIZE):
            full = QueueFull(
                f"{count} questions about text with {held} characters of this key are waiting; "
                f"the limits are {_MAX_QUESTIONS} questions and {_MAX_SIZE} characters",
                retry_after=1,
            )
            self._send(Refused(id, Problem.of(full)))
            return
        pieces = self._answer(id, question)
        thread.add(question.origin, lambda: next(pieces, None), id=id, size=size)

    def abort(self, id: int) -> None:
        for thread in self._threads:
            thread.remove(id)

    @property
    def _threads(self) -> tuple[FairThreads, FairThreads]:
        return self._short, self._long

    def _answer(self, id: int, question: TextQuestion) -> Iterator[int]:
        """Yields the cost of each piece."""
        try:
            match question:
                case Tokenize():
                    yield from self._tokenize(id, question)
                case Detokenize(tokens):
                    yield from self._detokenize(id, tokens)
                case Render(prompt):
                    text = self._render(prompt)
                    yield len(text)
                    self._send_text(id, text)
                case CountTokens(prompt):
                    text = self._render(prompt)
                    yield len(text)
                    self._send(Tokens(id, self._prompts.count(prompt), n_ctx=self._prompts.n_ctx))
        except PaddockError as error:
            self._send(Refused(id, Problem.of(error)))
        except Exception as error:
            traceback.print_exc()
            failed = PaddockError(f"cannot answer the question about text: {type(error).__name__}: {error}")
            self._send(Refused(id, Problem.of(failed)))

    def _tokenize(self, id: int, question: Tokenize) -> Iterator[int]:
        check_tokens((part for part in question.parts if isinstance(part, int)), self._n_vocab, "content")
        tokens: list[int] = []
        done = 0
        for place, part in enumerate(question.parts):
            if isinstance(part, int):
                tokens.append(part)
                done += 1
            else:
                first = question.add_special and place == 0
                tokens += self._vocab.tokenize(part, add_special=first, parse_special=question.parse_special)
                done += 1 + len(part)
            if done >= _PIECE:
                yield done
                done = 0
        listed = bytearray(b"[")
        for some in _cut(tokens):
            if len(listed) > 1:
                listed += b","
            if question.with_pieces:
                listed += b",".join(map(self._entry, some))
            else:
                listed += msgspec.json.encode(some)[1:-1]
            while len(listed) > _PART:
                self._send_behind(TokensPart(id, bytes(listed[:_PART])))
                del listed[:_PART]
            yield len(some)
        self._send(Tokens(id, len(tokens), bytes(listed + b"]")))

    def _detokenize(self, id: int, tokens: list[int]) -> Iterator[int]:
        check_tokens(tokens, self._n_vocab, "tokens")
        text = bytearray()
        for some in _cut(tokens):
            text += b"".join(map(self._name, some))
            if len(text) > _MAX_ANSWER:
                reason = f"the text of {len(tokens)} tokens has more than {_MAX_ANSWER} bytes: send fewer tokens"
                raise InvalidRequest(reason, param="tokens")
            yield len(some)
        self._send_text(id, text.decode("utf-8", "replace"))

    def _send_text(self, id: int, text: str) -> None:
        send = self._send_behind if len(text) > _PART else self._send
        send(Text(id, text))

    def _render(self, prompt: ChatPrompt) -> str:
        text = self._prompts.render(prompt)
        if len(text) > _MAX_ANSWER:
            reason = f"the rendered messages have {len(text)} characters; the limit is {_MAX_ANSWER}"
            raise InvalidRequest(reason, param="messages")
        return text

    def _encode_entry(self, token: int) -> bytes:
        """A token with its piece, in JSON."""
        return msgspec.json.encode(_piece(token, self._name(token)))


def _size(question: TextQuestion) -> int:
    """An estimate of its work and memory, in characters or tokens."""
    match question:
        case Tokenize():
            return sum(len(part) if isinstance(part, str) else 1 for part in question.parts)
        case Detokenize():
            return len(question.tokens)
        case Render() | CountTokens():
            return len(msgspec.msgpack.encode(question.prompt))


def _piece(token: int, name: bytes) -> TokenPiece:
    try:
        return TokenPiece(token, name.decode("utf-8"))
    except UnicodeDecodeError:
        return TokenPiece(token, list(name))


def _cut(tokens: Sequence[int]) -> Iterator[Sequence[int]]:
    return (tokens[start : start + _PIECE] for start in range(0, len(tokens), _PIECE))

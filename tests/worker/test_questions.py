"""Questions about text: keys take turns between bounded pieces, and one key can hold only so much."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paddock.engine.fake import FakeEngine
from paddock.types import Origin, Tokenize
from paddock.wire.messages import Refused, Tokens, TokensPart
from paddock.worker import questions
from paddock.worker.prompts import PromptReader
from paddock.worker.questions import Answer, TextQuestions
from tests.options import engine_options

ANNA, BEN = Origin(key="anna"), Origin(key="ben")
WORD = "word"


class Watched:
    """The fake vocabulary; a text of more than a word waits until the gate is open. All that is done is counted."""

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self.entered, self.gate = threading.Event(), threading.Event()
        self.done = 0
        """Long texts that were tokenised, and tokens that were named."""

    def tokenize(self, text: str, **options: bool) -> list[int]:
        if len(text) > len(WORD):
            self.entered.set()
            self.gate.wait()
            self.done += 1
        tokens: list[int] = self._vocab.tokenize(text, **options)
        return tokens

    def name(self, token: int) -> bytes:
        self.done += 1
        name: bytes = self._vocab.name(token)
        return name


class Asked:
    def __init__(self) -> None:
        engine = FakeEngine("fake:", engine_options(), lambda _: None)
        prompts = PromptReader(engine.vocab, engine.info)
        self.vocab = Watched(engine.vocab)
        engine.vocab = self.vocab  # type: ignore[assignment]
        self.sent: list[tuple[Answer, int]] = []
        """With how much had been done before."""
        self._changed = threading.Condition()
        self.questions = TextQuestions(engine, prompts, self._send, self._send)

    def _send(self, answer: Answer) -> None:
        with self._changed:
            self.sent.append((answer, self.vocab.done))
            self._changed.notify_all()

    def ask(self, id: int, text: str, origin: Origin, *, with_pieces: bool = False) -> None:
        self.questions.begin(id, Tokenize([text], False, False, with_pieces, origin))

    def answer(self, id: int) -> tuple[Answer, int]:
        """Wait for the last message about it."""

        def found() -> tuple[Answer, int] | None:
            return next((one for one in self.sent if one[0].id == id and not isinstance(one[0], TokensPart)), None)

        with self._changed:
            assert self._changed.wait_for(found, 300)
            return found() or pytest.fail("it was there")

    def listed(self, id: int) -> Any:
        self.answer(id)
        parts = [
            answer.listed for answer, _ in self.sent if isinstance(answer, TokensPart | Tokens) and answer.id == id
        ]
        return json.loads(b"".join(parts))


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.vocab.gate.set()


def test_a_word_waits_for_one_piece_of_another_key(asked: Asked) -> None:
    text = "x" * (questions._LONG - 1)
    for id in range(4):
        asked.ask(id, text, ANNA, with_pieces=True)
    assert asked.vocab.entered.wait(300)
    asked.ask(9, WORD, BEN)
    asked.vocab.gate.set()
    answer, done = asked.answer(9)
    assert isinstance(answer, Tokens)
    assert done == 1, "the piece that was under way when it came"
    assert not any(isinstance(one, Tokens) and one.id < 4 for one, _ in asked.sent[: asked.sent.index((answer, done))])


def test_a_word_waits_for_no_long_text(asked: Asked) -> None:
    for id in range(4):
        asked.ask(id, "x" * (questions._LONG + 1), ANNA)
    assert asked.vocab.entered.wait(300)
    asked.ask(8, WORD, BEN)
    asked.ask(9, WORD, ANNA)
    assert asked.listed(8) == asked.listed(9) == list(WORD.encode())


def test_a_key_has_so_many_questions_waiting(asked: Asked) -> None:
    asked.ask(0, "x" * 10, ANNA)
    assert asked.vocab.entered.wait(300)
    for id in range(1, questions._MOST_QUESTIONS + 1):
        asked.ask(id, WORD, ANNA)
    refused, _ = asked.answer(questions._MOST_QUESTIONS)
    assert isinstance(refused, Refused)
    assert (refused.problem.code, refused.problem.retry_after) == ("queue_full", 1)
    asked.ask(1000, WORD, BEN)
    asked.questions.abort(1)
    asked.ask(1001, WORD, ANNA)
    asked.vocab.gate.set()
    assert isinstance(asked.answer(1000)[0], Tokens)
    assert isinstance(asked.answer(1001)[0], Tokens)
    assert not any(answer.id == 1 for answer, _ in asked.sent)


def test_a_key_has_so_many_characters_waiting(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_MOST_SIZE", 1000)
    asked.ask(0, "x" * 2000, ANNA)  # a lone one is always taken: the gateway has bounded it
    asked.ask(1, WORD, ANNA)
    refused, _ = asked.answer(1)
    assert isinstance(refused, Refused)
    assert "1 questions about text with 2000 characters" in refused.problem.message


def test_a_long_answer_comes_in_parts(asked: Asked) -> None:
    asked.vocab.gate.set()
    text = "abcé" * 20000
    asked.ask(1, text, ANNA, with_pieces=True)
    assert [entry["id"] for entry in asked.listed(1)] == list(text.encode())
    sizes = [len(one.listed) for one, _ in asked.sent if isinstance(one, TokensPart | Tokens)]
    assert len(sizes) > 5
    assert max(sizes) <= questions._PART + 1
    asked.ask(2, "", ANNA)
    assert asked.listed(2) == []

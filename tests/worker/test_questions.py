"""Questions about text: keys take turns between bounded pieces, and the queue of one key is limited."""

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


class _GatedVocab:
    """The fake vocabulary. It counts its calls, and blocks on long texts until the gate is open."""

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self.entered, self.gate = threading.Event(), threading.Event()
        self.done = 0
        """How many long texts were tokenised and tokens converted."""

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


class Client:
    def __init__(self) -> None:
        engine = FakeEngine("fake:", engine_options(), lambda _: None)
        prompts = PromptReader(engine.vocab, engine.info)
        self.vocab = _GatedVocab(engine.vocab)
        engine.vocab = self.vocab  # type: ignore[assignment]
        self.sent: list[tuple[Answer, int]] = []
        """Each answer, and how much the vocabulary had done before it."""
        self._changed = threading.Condition()
        self.questions = TextQuestions(engine, prompts, self._send, self._send)

    def _send(self, answer: Answer) -> None:
        with self._changed:
            self.sent.append((answer, self.vocab.done))
            self._changed.notify_all()

    def ask(self, id: int, text: str, origin: Origin, *, with_pieces: bool = False) -> None:
        self.questions.begin(id, Tokenize([text], False, False, with_pieces, origin))

    def answer(self, id: int) -> tuple[Answer, int]:
        """Wait for the last message of the answer."""

        def found() -> tuple[Answer, int] | None:
            return next((one for one in self.sent if one[0].id == id and not isinstance(one[0], TokensPart)), None)

        with self._changed:
            assert self._changed.wait_for(found, 300)
            return found() or pytest.fail("no answer")

    def listed(self, id: int) -> Any:
        self.answer(id)
        parts = [
            answer.listed for answer, _ in self.sent if isinstance(answer, TokensPart | Tokens) and answer.id == id
        ]
        return json.loads(b"".join(parts))


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.vocab.gate.set()


def test_a_short_question_waits_for_at_most_one_piece_of_another_key(client: Client) -> None:
    text = "x" * (questions._LONG - 1)
    for id in range(4):
        client.ask(id, text, ANNA, with_pieces=True)
    assert client.vocab.entered.wait(300)
    client.ask(9, WORD, BEN)
    client.vocab.gate.set()
    answer, done = client.answer(9)
    assert isinstance(answer, Tokens)
    assert done == 1, "only the piece that was running"
    assert not any(
        isinstance(one, Tokens) and one.id < 4 for one, _ in client.sent[: client.sent.index((answer, done))]
    )


def test_a_short_question_does_not_wait_for_long_texts(client: Client) -> None:
    for id in range(4):
        client.ask(id, "x" * (questions._LONG + 1), ANNA)
    assert client.vocab.entered.wait(300)
    client.ask(8, WORD, BEN)
    client.ask(9, WORD, ANNA)
    assert client.listed(8) == client.listed(9) == list(WORD.encode())


def test_the_number_of_waiting_questions_of_a_key_is_limited(client: Client) -> None:
    client.ask(0, "x" * 10, ANNA)
    assert client.vocab.entered.wait(300)
    for id in range(1, questions._MAX_QUESTIONS + 1):
        client.ask(id, WORD, ANNA)
    refused, _ = client.answer(questions._MAX_QUESTIONS)
    assert isinstance(refused, Refused)
    assert (refused.problem.code, refused.problem.retry_after) == ("queue_full", 1)
    client.ask(1000, WORD, BEN)
    client.questions.abort(1)
    client.ask(1001, WORD, ANNA)
    client.vocab.gate.set()
    assert isinstance(client.answer(1000)[0], Tokens)
    assert isinstance(client.answer(1001)[0], Tokens)
    assert not any(answer.id == 1 for answer, _ in client.sent)


def test_the_characters_of_the_waiting_questions_of_a_key_are_limited(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_MAX_SIZE", 1000)
    client.ask(0, "x" * 2000, ANNA)  # a single question is always accepted: the gateway has limited its size
    client.ask(1, WORD, ANNA)
    refused, _ = client.answer(1)
    assert isinstance(refused, Refused)
    assert "1 questions about text with 2000 characters" in refused.problem.message


def test_a_long_answer_is_sent_in_parts(client: Client) -> None:
    client.vocab.gate.set()
    text = "abcé" * 20000
    client.ask(1, text, ANNA, with_pieces=True)
    assert [entry["id"] for entry in client.listed(1)] == list(text.encode())
    sizes = [len(one.listed) for one, _ in client.sent if isinstance(one, TokensPart | Tokens)]
    assert len(sizes) > 5
    assert max(sizes) <= questions._PART + 1
    client.ask(2, "", ANNA)
    assert client.listed(2) == []

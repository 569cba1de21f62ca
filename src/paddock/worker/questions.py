"""Questions about text, answered from a model's vocabulary and its template. None of them needs the engine."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from paddock.engine import Engine
from paddock.errors import InvalidRequest, PaddockError
from paddock.wire import Detokenize, Problem, ReadPrompt, Refused, Render, Text, TextQuestion, Tokenize, Tokens
from paddock.worker.prompts import PromptReader

_LONGEST_TEXT = 4 * 1024 * 1024


class TextQuestions:
    """Every question is answered by one message."""

    def __init__(self, engine: Engine, prompts: PromptReader, send: Callable[[Tokens | Text | Refused], None]) -> None:
        self._vocab = engine.vocab
        self._n_vocab = engine.info.n_vocab
        self._prompts = prompts
        self._send = send
        # A thread of its own: whoever has a book counted delays nobody's prompt.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="questions")

    def begin(self, question: TextQuestion) -> None:
        self._thread.submit(self._answer, question)

    def _answer(self, question: TextQuestion) -> None:
        answer: Tokens | Text | Refused
        try:
            match question:
                case Tokenize():
                    answer = self._tokenize(question)
                case Detokenize(id, tokens):
                    self._refuse_unknown(tokens, "tokens")
                    answer = Text(id, b"".join(map(self._vocab.name, tokens)).decode("utf-8", "replace"))
                case Render(id, prompt):
                    answer = Text(id, self._prompts.render(prompt))
                case ReadPrompt(id, prompt):
                    answer = Tokens(id, self._prompts.tokens(prompt))
        except PaddockError as error:
            answer = Refused(question.id, Problem.of(error))
        except Exception as error:
            traceback.print_exc()
            failed = PaddockError(f"the text could not be read: {type(error).__name__}: {error}")
            answer = Refused(question.id, Problem.of(failed))
        self._send(answer)

    def _tokenize(self, question: Tokenize) -> Tokens:
        size = sum(len(part) for part in question.parts if isinstance(part, str))
        if size > _LONGEST_TEXT:
            raise InvalidRequest(
                f"the text has {size} characters; {_LONGEST_TEXT} at most are read at once", param="content"
            )
        self._refuse_unknown([part for part in question.parts if isinstance(part, int)], "content")
        tokens: list[int] = []
        for place, part in enumerate(question.parts):
            if isinstance(part, int):
                tokens.append(part)
            else:
                first = question.add_special and place == 0
                tokens += self._vocab.tokenize(part, add_special=first, parse_special=question.parse_special)
        return Tokens(question.id, tokens, list(map(self._vocab.name, tokens)) if question.with_pieces else None)

    def _refuse_unknown(self, tokens: list[int], param: str) -> None:
        if not all(0 <= token < self._n_vocab for token in tokens):
            raise InvalidRequest(f"token ids must lie in 0..{self._n_vocab - 1}", param=param)

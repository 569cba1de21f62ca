"""A draft model: a small one that guesses what a large one with the same vocabulary will say.

To check a few guesses takes the large one less time than to compute as many tokens one by one, because it reads its
weights only once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp.llama_cpp as lib
import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine.batch import Batch
from paddock.engine.vocab import LlamaVocab
from paddock.errors import DecodeFailed
from paddock.types import DraftParams, EngineOptions, Span

# While more answers than this are under way, a step with guesses for all of them costs more than it saves: a CPU soon
# has more to compute than to read (docs/lab.md).
_ANSWERS_ON_CPU, _ANSWERS_ON_GPU = 2, 8
# The most tokens of texts new to it that are read in one step: answers wait for it.
_READ_ON_CPU, _READ_ON_GPU = 64, 512
# Vocabularies of one family are filled up to round numbers, and not always to the same one.
_LARGEST_DIFFERENCE = 128
# The first tokens have a special meaning and often another name; what they mean is compared by itself.
_FIRST_TEXT = 5


def draft_options(options: EngineOptions, *, on_gpu: bool) -> EngineOptions:
    """What a draft model is opened with: as much context, but no more sequences and no larger steps than it needs."""
    read = _READ_ON_GPU if on_gpu else _READ_ON_CPU
    return msgspec.structs.replace(
        options,
        parallel=min(options.parallel, _ANSWERS_ON_GPU if on_gpu else _ANSWERS_ON_CPU),
        n_gpu_layers=options.n_gpu_layers_draft,
        n_batch=read,
        n_ubatch=read,
    )


def why_unfit(target: LlamaVocab, draft: LlamaVocab) -> str:
    """Why the tokens of the one are not those of the other; empty if they are."""
    if (ours := target.kind()) != (theirs := draft.kind()):
        return f"its vocabulary is of another kind ({theirs} instead of {ours})"
    if abs(target.size - draft.size) > _LARGEST_DIFFERENCE:
        return f"its vocabulary has {draft.size} tokens instead of {target.size}"
    for token in range(_FIRST_TEXT, min(target.size, draft.size)):
        if target.text(token) != draft.text(token):
            return f"its token {token} is {draft.text(token)!r} instead of {target.text(token)!r}"
    return ""


@dataclass(slots=True, eq=False)
class _Place:
    """A sequence of the draft model's, and what it holds."""

    sequence: int
    tokens: list[int] = field(default_factory=list)
    """A request's own list, which only grows; its first `held` tokens are in cells."""
    held: int = 0
    guessed: list[int] = field(default_factory=list)
    """What is in cells after them: perhaps what the answer went on with."""

    @property
    def cells(self) -> int:
        return self.held + len(self.guessed)


@dataclass(slots=True, frozen=True)
class _Answer:
    """An answer that is to be guessed at, and where it is read for that."""

    span: Span
    tokens: list[int]
    params: DraftParams
    place: _Place

    @property
    def new(self) -> int:
        return len(self.tokens) - self.place.held

    @property
    def grows(self) -> int:
        """How many cells more it may take."""
        return self.new + self.params.n_max


class Drafter:
    """The small model with a context of its own, in which it reads every answer that it is to guess at. Belongs to the
    engine thread. Adapters do not act on it.
    """

    def __init__(self, model: Any, context: Any, *, places: int, n_vocab: int, end_tokens: frozenset[int]) -> None:
        self._model = model
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self._known = min(n_vocab, self._n_vocab)
        """From here on, only one of the two models has a token."""
        self._end_tokens = end_tokens
        self._cells = int(lib.llama_n_ctx(context))
        self._longest = min(self._cells, int(lib.llama_model_n_ctx_train(model)))
        self._batch = Batch(int(lib.llama_n_batch(context)))
        self._places = [_Place(sequence) for sequence in range(places)]
        """The one that was used last comes last."""
        self._decode([Span(0, 0, [0])])  # what this build cannot do dies here, while loading
        lib.llama_memory_clear(self._memory, True)

    @property
    def places(self) -> int:
        """How many answers it can guess at."""
        return len(self._places)

    def propose(self, spans: Sequence[Span]) -> None:
        """Guess what comes after the spans that may be guessed ahead: the likeliest token, then the next one, of all
        of them at once. A text that is new to it is read first, over several steps if it is long.
        """
        going = self._catch_up(spans)
        while going:
            for answer, row in zip(going, self._logits(len(going)), strict=True):
                answer.span.draft += self._guess(row, answer.params.p_min)
            # It goes on where the last row had a guess, and until there are enough.
            going = [
                answer for answer in going if len(answer.place.guessed) < len(answer.span.draft) < answer.params.n_max
            ]
            if going:
                newest = [answer.span.draft[-1:] for answer in going]
                self._decode(
                    [
                        Span(answer.place.sequence, answer.place.cells, guess, True)
                        for answer, guess in zip(going, newest, strict=True)
                    ]
                )
                for answer, guess in zip(going, newest, strict=True):
                    answer.place.guessed += guess
        for span in spans:
            if span.drafting is not None and len(span.draft) < span.drafting.params.n_min:
                span.draft = []

    def forget_all(self) -> None:
        """After a failure: nothing that is in its cells is sure any more."""
        lib.llama_memory_clear(self._memory, True)
        for place in self._places:
            place.held, place.guessed = 0, []

    def close(self) -> None:
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _catch_up(self, spans: Sequence[Span]) -> list[_Answer]:
        """Read what is new in each answer, as far as one step goes: those with little of it first. Returns those that
        have been read to their end, in the order of the outputs.
        """
        wanted = [(span, span.drafting) for span in spans if span.drafting is not None]
        lists = [drafting.tokens for _, drafting in wanted]
        answers = [
            _Answer(span, drafting.tokens, drafting.params, self._place(drafting.tokens, lists))
            for span, drafting in wanted
        ]
        idle = [place for place in self._places if not any(place is answer.place for answer in answers)]
        room = self._batch.capacity
        reading: list[Span] = []
        complete: list[_Answer] = []
        promised = 0
        for answer in sorted(answers, key=lambda answer: answer.new):
            place, tokens = answer.place, answer.tokens
            new = tokens[place.held : place.held + room]
            if not new or max(new) >= self._known or not self._has_room(answer, promised, idle):
                continue
            promised += answer.grows - len(new)
            is_all = len(new) == answer.new
            reading.append(Span(place.sequence, place.held, new, True if is_all else None))
            place.held += len(new)
            room -= len(new)
            if is_all:
                complete.append(answer)
        if reading:
            self._decode(reading)
        return complete

    def _place(self, tokens: list[int], wanted: list[list[int]]) -> _Place:
        """Where these tokens are held; or, of those places that nobody in this step has, the one that holds the most
        of them. Nothing is left there that is not one of them. The last token is always new: what follows it is asked.
        """
        place = next((place for place in self._places if place.tokens is tokens), None)
        if place is not None:
            known = place.held + _common(place.guessed, tokens[place.held : -1])
        else:
            free = [place for place in self._places if not any(place.tokens is other for other in wanted)]
            known, place = max(
                ((_common(place.tokens[: place.held], tokens[:-1]), place) for place in free), key=lambda pair: pair[0]
            )
        self._forget(place, known)
        place.tokens = tokens
        self._places.remove(place)
        self._places.append(place)
        return place

    def _has_room(self, answer: _Answer, promised: int, idle: list[_Place]) -> bool:
        """Whether the answer can be held as far as it may grow, if need be in the room of what nobody asks about."""
        if len(answer.tokens) + answer.params.n_max > self._longest:
            return False
        for place in (*idle, None):
            if sum(place.cells for place in self._places) + promised + answer.grows <= self._cells:
                return True
            if place is not None:
                self._forget(place, 0)
        return False

    def _guess(self, row: npt.NDArray[np.float32], p_min: float) -> list[int]:
        """The likeliest token; nothing if it is not likely enough, or ends the answer."""
        token = int(row.argmax())
        if token >= self._known or token in self._end_tokens:
            return []
        likely = p_min <= 0 or 1 / float(np.exp(row - row[token]).sum()) >= p_min
        return [token] if likely else []

    def _decode(self, spans: Sequence[Span]) -> None:
        self._batch.fill(spans, n_vocab=self._n_vocab)
        status = int(lib.llama_decode(self._context, self._batch.struct))
        if status != 0:
            raise DecodeFailed(f"llama_decode failed with {status} on {len(spans)} sequences of the draft model")

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape=(rows, self._n_vocab))

    def _forget(self, place: _Place, start: int) -> None:
        """All that it holds but the first tokens, which are those of its request."""
        if start < place.cells:
            lib.llama_memory_seq_rm(self._memory, place.sequence, start, -1)
        place.held, place.guessed = start, []


def _common(these: Sequence[int], those: Sequence[int]) -> int:
    """How many of the first tokens are the same."""
    pairs = zip(these, those, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(these), len(those)))

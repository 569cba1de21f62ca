"""Speculative decoding: a small draft model proposes tokens, and the large model verifies them in one step.

Verifying a few tokens takes less time than computing them one by one, because the weights are read only once. Both
models need the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine.batch import Batch
from paddock.engine.libllama import lib
from paddock.engine.loading import computes_on_cpu, context_params, has_indivisible_state, load_model, new_context
from paddock.engine.vocab import LlamaVocab
from paddock.errors import ModelLoadFailed
from paddock.types import DraftParams, EngineOptions, Span

# With more generating requests than this, drafts cost more than they save: a CPU soon becomes compute-bound
# (docs/lab.md).
_REQUESTS_ON_CPU, _REQUESTS_ON_GPU = 2, 8
# Prompt tokens that the draft model computes per step, while the requests wait.
_PREFILL_ON_CPU, _PREFILL_ON_GPU = 64, 512
# Vocabularies of one model family are padded to different sizes.
_MAX_SIZE_DIFFERENCE = 128
# The first tokens are special tokens, whose names often differ. `kind` compares them.
_FIRST_TEXT = 5


def _draft_options(options: EngineOptions, *, on_gpu: bool) -> EngineOptions:
    """The options of a draft model: the same context, with as many sequences and as large a batch as it needs."""
    n_batch = _PREFILL_ON_GPU if on_gpu else _PREFILL_ON_CPU
    return msgspec.structs.replace(
        options.placed_as_draft(),
        parallel=min(options.parallel, _REQUESTS_ON_GPU if on_gpu else _REQUESTS_ON_CPU),
        n_batch=n_batch,
        n_ubatch=n_batch,
    )


def _why_unfit(target: LlamaVocab, draft: LlamaVocab) -> str:
    """Why the two vocabularies differ. Empty: they are the same."""
    if (ours := target.kind()) != (theirs := draft.kind()):
        return f"its vocabulary is of another kind ({theirs} instead of {ours})"
    if abs(target.size - draft.size) > _MAX_SIZE_DIFFERENCE:
        return f"its vocabulary has {draft.size} tokens instead of {target.size}"
    for token in range(_FIRST_TEXT, min(target.size, draft.size)):
        if target.text(token) != draft.text(token):
            return f"its token {token} is {draft.text(token)!r} instead of {target.text(token)!r}"
    return ""


@dataclass(slots=True, eq=False)
class _Slot:
    """A sequence of the draft model, and its tokens."""

    sequence: int
    tokens: list[int] = field(default_factory=list)
    """The request's own list, which only grows. Its first `held` tokens are in cells."""
    held: int = 0
    drafted: list[int] = field(default_factory=list)
    """Drafted tokens in the cells after them."""

    @property
    def cells(self) -> int:
        return self.held + len(self.drafted)


@dataclass(slots=True, frozen=True)
class _Target:
    """A request to draft for, and its slot in the draft model."""

    span: Span
    params: DraftParams
    slot: _Slot

    @property
    def new(self) -> int:
        return len(self.slot.tokens) - self.slot.held

    @property
    def grows(self) -> int:
        """How many more cells it may take."""
        return self.new + self.params.n_max


class Drafter:
    """The draft model and its context, which holds the tokens of every request it drafts for. Belongs to the engine
    thread. Adapters do not apply to it.
    """

    def __init__(self, model: Any, context: Any, *, slots: int, target: LlamaVocab, is_cpu_bound: bool) -> None:
        self._model = model
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self._shared_vocab = min(target.size, self._n_vocab)
        """Only one of the models has the token ids from here on."""
        self._end_tokens = target.end_tokens
        self.is_cpu_bound = is_cpu_bound
        self._cells = int(lib.llama_n_ctx(context))
        self._longest = min(self._cells, int(lib.llama_model_n_ctx_train(model)))
        self._batch = Batch(int(lib.llama_n_batch(context)))
        self.slots = slots
        """The number of requests that it can draft for."""
        self._slots = [_Slot(sequence) for sequence in range(slots)]
        """The most recently used comes last."""
        self._decode([Span(0, 0, [0])])  # a build that does not work on this machine dies here, while loading
        lib.llama_memory_clear(self._memory, True)

    @classmethod
    def open(cls, options: EngineOptions, target: LlamaVocab, *, n_ctx: int, on_gpu: bool) -> Drafter:
        """Load the draft model of these options. Raises `ModelLoadFailed` if it does not fit the model whose vocabulary
        is given.
        """
        path = Path(options.model_draft)
        options = _draft_options(options, on_gpu=on_gpu)
        model = load_model(path, options, lambda _: None)
        unfit = _why_unfit(target, LlamaVocab(model))
        if has_indivisible_state(model):
            unfit = "its memory cannot be cut"
        if unfit:
            raise ModelLoadFailed(f"{path.name} cannot be the draft model: {unfit}")
        trained = options.longest_context(int(lib.llama_model_n_ctx_train(model)))
        n_ctx = min(n_ctx, trained * options.parallel)
        params = context_params(options, n_ctx=n_ctx, n_batch=min(options.n_batch, n_ctx), unified=True)
        return cls(
            model,
            new_context(model, params, options),
            slots=options.parallel,
            target=target,
            is_cpu_bound=computes_on_cpu(model, options.n_gpu_layers),
        )

    def propose(self, spans: Sequence[Span]) -> None:
        """Draft tokens for the spans that allow it, greedily, one token of all spans per pass. A new prompt is computed
        first, over several steps if it is long.
        """
        active = self._catch_up(spans)
        while active:
            for target, row in zip(active, self._logits(len(active)), strict=True):
                target.span.draft += self._next_token(row, target.params.p_min)
            # Continue where the last row gave a token, until there are enough.
            active = [
                target for target in active if len(target.slot.drafted) < len(target.span.draft) < target.params.n_max
            ]
            if active:
                newest = [target.span.draft[-1:] for target in active]
                self._decode(
                    [
                        Span(target.slot.sequence, target.slot.cells, token, True)
                        for target, token in zip(active, newest, strict=True)
                    ]
                )
                for target, token in zip(active, newest, strict=True):
                    target.slot.drafted += token
        for span in spans:
            if span.drafting is not None and len(span.draft) < span.drafting.params.n_min:
                span.draft = []

    def clear(self) -> None:
        """Drop all cells after a failure."""
        lib.llama_memory_clear(self._memory, True)
        for slot in self._slots:
            slot.held, slot.drafted = 0, []

    def close(self) -> None:
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _catch_up(self, spans: Sequence[Span]) -> list[_Target]:
        """Compute the new tokens of each request, the shortest first, as far as one batch goes. Returns the requests
        that are complete, in the order of the outputs.
        """
        wanted = [(span, span.drafting) for span in spans if span.drafting is not None]
        lists = [drafting.tokens for _, drafting in wanted]
        targets = [_Target(span, drafting.params, self._slot(drafting.tokens, lists)) for span, drafting in wanted]
        idle = [slot for slot in self._slots if not any(slot is target.slot for target in targets)]
        room = self._batch.capacity
        prefill: list[Span] = []
        complete: list[_Target] = []
        promised = 0
        for target in sorted(targets, key=lambda target: target.new):
            slot = target.slot
            new = slot.tokens[slot.held : slot.held + room]
            if not new or max(new) >= self._shared_vocab or not self._has_room(target, promised, idle):
                continue
            promised += target.grows - len(new)
            is_all = len(new) == target.new
            prefill.append(Span(slot.sequence, slot.held, new, True if is_all else None))
            slot.held += len(new)
            room -= len(new)
            if is_all:
                complete.append(target)
        if prefill:
            self._decode(prefill)
        return complete

    def _slot(self, tokens: list[int], wanted: list[list[int]]) -> _Slot:
        """The slot that holds these tokens or, of the slots that no request of this step has, the one with the longest
        common prefix. Other tokens are removed from it. The last token is always computed: its logits are needed.
        """
        slot = next((slot for slot in self._slots if slot.tokens is tokens), None)
        if slot is not None:
            cached = slot.held + _common(slot.drafted, tokens[slot.held : -1])
        else:
            free = [slot for slot in self._slots if not any(slot.tokens is other for other in wanted)]
            cached, slot = max(
                ((_common(slot.tokens[: slot.held], tokens[:-1]), slot) for slot in free), key=lambda pair: pair[0]
            )
        self._forget(slot, cached)
        slot.tokens = tokens
        self._slots.remove(slot)
        self._slots.append(slot)
        return slot

    def _has_room(self, target: _Target, promised: int, idle: list[_Slot]) -> bool:
        """Whether there are cells for the request and its drafts. Clears idle slots if needed."""
        if len(target.slot.tokens) + target.params.n_max > self._longest:
            return False
        for slot in (*idle, None):
            if sum(slot.cells for slot in self._slots) + promised + target.grows <= self._cells:
                return True
            if slot is not None:
                self._forget(slot, 0)
        return False

    def _next_token(self, row: npt.NDArray[np.float32], p_min: float) -> list[int]:
        """The most likely token. Empty if its probability is below `p_min` or it is an end token."""
        token = int(row.argmax())
        if token >= self._shared_vocab or token in self._end_tokens:
            return []
        likely = p_min <= 0 or 1 / float(np.exp(row - row[token]).sum()) >= p_min
        return [token] if likely else []

    def _decode(self, spans: Sequence[Span]) -> None:
        self._batch.decode(self._context, spans, n_vocab=self._n_vocab)

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape=(rows, self._n_vocab))

    def _forget(self, slot: _Slot, start: int) -> None:
        """Drop all but the first `start` tokens."""
        if start < slot.cells:
            lib.llama_memory_seq_rm(self._memory, slot.sequence, start, -1)
        slot.held, slot.drafted = start, []


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix."""
    pairs = zip(a, b, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(a), len(b)))

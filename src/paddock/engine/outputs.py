"""The logits of a step, and the tokens that are sampled from them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.libllama import lib
from paddock.engine.pause import Pause
from paddock.engine.sampler import Sampler, logprobs_of
from paddock.engine.sampling_errors import sampling_failed
from paddock.engine.selected_rows import SelectedRows
from paddock.types import Sampled, Span


class Outputs:
    def __init__(self, context: Any, n_vocab: int) -> None:
        self.copied: Callable[[], npt.NDArray[np.float32]] | None = None
        """Returns the rows of the step, if samplers are attached to the context."""
        self._context = context
        self._n_vocab = n_vocab
        self._outputs = np.empty((0, 0), np.float32)
        self._outputs_at: int | None = None
        self._pause = Pause()
        self._batch_sampler = BatchSampler([])

    def sample(self, spans: Sequence[Span]) -> list[Sampled | None]:
        """Sample a token for each span that has a sampler."""
        if any(span.targets or span.draft for span in spans):
            return self._sample_rows(spans)
        samplers = [span.sampler for span in spans if span.sampler is not None]
        if not samplers:
            lib.llama_synchronize(self._context)
            return [None] * len(spans)
        chosen = iter(self._choose(self._logits(len(samplers)), samplers))
        return [None if span.sampler is None else next(chosen) for span in spans]

    def sample_selected(self, spans: Sequence[Span], selected: SelectedRows) -> list[Sampled | None] | None:
        """Sample from selected rows. None, with nothing changed: they do not decide every token."""
        samplers = self._batched([span.sampler for span in spans if span.sampler is not None])
        if (results := samplers.choose_selected(selected)) is None:
            return None
        chosen = iter(results)
        return [None if span.sampler is None else next(chosen) for span in spans]

    def _batched(self, samplers: list[Sampler]) -> BatchSampler:
        if samplers != self._batch_sampler.samplers:
            self._batch_sampler = BatchSampler(samplers, self._pause)
        return self._batch_sampler

    def _choose(self, rows: npt.NDArray[np.float32], samplers: list[Sampler]) -> list[Sampled]:
        return self._batched(samplers).choose(rows)

    def _sample_rows(self, spans: Sequence[Span]) -> list[Sampled | None]:
        """The general case: a span has a row for each target, then one for its last token and one for each draft. While
        a drafted token is the one that is sampled, the next row is valid too.
        """
        sampled_rows = [0 if span.sampler is None else 1 + len(span.draft) for span in spans]
        ends = list(accumulate(len(span.targets) + count for span, count in zip(spans, sampled_rows, strict=True)))
        firsts = [end - count for end, count in zip(ends, sampled_rows, strict=True)]
        rows = self._logits(ends[-1])
        chosen: list[list[Sampled]] = [[] for _ in spans]
        active = [index for index, count in enumerate(sampled_rows) if count]
        while active:
            at = [firsts[index] + len(chosen[index]) for index in active]
            for index, sampled in zip(active, self._choose(rows[at], [spans[i].sampler for i in active]), strict=True):
                chosen[index].append(sampled)
            active = [index for index in active if _is_accepted(spans[index], chosen[index])]
        return [
            _result(span, rows[first - len(span.targets) : first], tokens)
            for span, first, tokens in zip(spans, firsts, chosen, strict=True)
        ]

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The logits of the last step, in the order of the batch. libllama rarely moves them, so the view is kept."""
        if self.copied is not None:
            return self.copied()
        address = ctypes.cast(lib.llama_get_logits(self._context), ctypes.c_void_p).value
        if address != self._outputs_at or rows > len(self._outputs):
            pointer = lib.llama_get_logits(self._context)
            self._outputs = np.ctypeslib.as_array(pointer, shape=(rows, self._n_vocab))
            self._outputs_at = address
        return self._outputs[:rows]


def _is_accepted(span: Span, chosen: list[Sampled]) -> bool:
    """Whether the newest token equals its draft, so that the next row is valid, and one more may be sampled."""
    draft, newest, place = span.draft, chosen[-1], len(chosen) - 1
    is_right = place < len(draft) and newest.token == draft[place]
    return is_right and not newest.last and len(chosen) != span.sampler.step_limit


def _result(span: Span, target_rows: npt.NDArray[np.float32], chosen: list[Sampled]) -> Sampled | None:
    targets = zip(target_rows, span.targets, strict=True)
    try:
        prompt = [logprobs_of(row, target, span.target_probs) for row, target in targets]
    except Exception as error:  # fails this request only
        return Sampled(None, error=sampling_failed(error))
    if not chosen:
        return Sampled(None, prompt=prompt) if prompt else None
    return msgspec.structs.replace(
        chosen[0], prompt=prompt, drafted=len(span.draft), draft_source=span.draft_source, more=chosen[1:]
    )

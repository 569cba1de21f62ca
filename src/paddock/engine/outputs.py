"""The logits of a step, and the tokens that are sampled from them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import llama_cpp.llama_cpp as lib
import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.sampler import Sampler, logprobs_of
from paddock.types import Sampled, Span, TokenLogprobs


class Outputs:
    def __init__(self, context: Any, n_vocab: int) -> None:
        self._context = context
        self._n_vocab = n_vocab
        self._outputs = np.empty((0, 0), np.float32)
        self._outputs_at: int | None = None
        self._batch_sampler = BatchSampler([])

    def sample(self, spans: Sequence[Span]) -> list[Sampled | None]:
        """Sample a token for each span that has a sampler."""
        samplers = [span.sampler for span in spans if span.sampler is not None]
        if any(span.targets for span in spans):
            return self._sample_with_prompt_probs(spans, samplers)
        if any(span.draft for span in spans):
            return self._sample_drafts(spans)
        if not samplers:
            lib.llama_synchronize(self._context)
            return [None] * len(spans)
        chosen = iter(self._choose(self._logits(len(samplers)), samplers))
        return [None if span.sampler is None else next(chosen) for span in spans]

    def _choose(self, rows: npt.NDArray[np.float32], samplers: list[Sampler]) -> list[Sampled]:
        if samplers != self._batch_sampler.samplers:
            self._batch_sampler = BatchSampler(samplers)
        return self._batch_sampler.choose(rows)

    def _sample_drafts(self, spans: Sequence[Span]) -> list[Sampled | None]:
        """Verify drafts: while a drafted token is the one that is sampled, the next row counts too."""
        ends = list(accumulate(1 + len(span.draft) for span in spans))
        rows = self._logits(ends[-1])
        firsts = [0, *ends]
        chosen: list[list[Sampled]] = [[] for _ in spans]
        active = list(range(len(spans)))
        while active:
            at = [firsts[index] + len(chosen[index]) for index in active]
            for index, sampled in zip(active, self._choose(rows[at], [spans[i].sampler for i in active]), strict=True):
                chosen[index].append(sampled)
            active = [index for index in active if _is_accepted(spans[index].draft, chosen[index])]
        return [
            msgspec.structs.replace(first, drafted=len(span.draft), more=more)
            for span, (first, *more) in zip(spans, chosen, strict=True)
        ]

    def _sample_with_prompt_probs(self, spans: Sequence[Span], samplers: list[Sampler]) -> list[Sampled | None]:
        """The same with rows for the probabilities of prompt tokens among the outputs."""
        rows = self._logits(sum(len(span.targets) + (span.sampler is not None) for span in spans))
        probs: list[list[TokenLogprobs]] = []
        last: list[int] = []
        at = 0
        for span in spans:
            targets = zip(rows[at:], span.targets, strict=False)
            probs.append([logprobs_of(row, target, span.target_probs) for row, target in targets])
            at += len(span.targets)
            if span.sampler is not None:
                last.append(at)
                at += 1
        chosen = iter(self._choose(rows[last], samplers) if last else ())
        return [
            msgspec.structs.replace(next(chosen) if span.sampler is not None else Sampled(None), prompt=prompt)
            if span.sampler is not None or prompt
            else None
            for span, prompt in zip(spans, probs, strict=True)
        ]

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The logits of the last step, in the order of the batch. libllama rarely moves them, so the view is kept."""
        address = ctypes.cast(lib.llama_get_logits(self._context), ctypes.c_void_p).value
        if address != self._outputs_at or rows > len(self._outputs):
            pointer = lib.llama_get_logits(self._context)
            self._outputs = np.ctypeslib.as_array(pointer, shape=(rows, self._n_vocab))
            self._outputs_at = address
        return self._outputs[:rows]


def _is_accepted(draft: list[int], chosen: list[Sampled]) -> bool:
    """Whether the newest token equals its draft, so that the next row is valid."""
    newest, place = chosen[-1], len(chosen) - 1
    return place < len(draft) and newest.token == draft[place] and not newest.last

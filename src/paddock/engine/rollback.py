"""Drafts for hybrid models whose recurrent states libllama can set back by a few tokens.

For this libllama keeps the states after each of the last tokens of a micro-batch (`n_rs_seq`). They stay where they are
when the current state of a sequence is moved to another cell, which happens when a later micro-batch needs neighbouring
cells. Then a sequence would go back to the state of another one, without an error. So a step with drafts is one
micro-batch: its spans have the same size, and its streams are adjacent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.engine.libllama import lib
from paddock.errors import DecodeFailed
from paddock.types import Drop, EngineOptions, Forget, LoadCheckpoint, SaveCheckpoint, Span

# The last bits of logits depend on the shape of a step. A right row is at least so many times nearer to the expected
# one than the row of a state that was not set back, as squares.
_NEARER = 100.0
_CHECKPOINT = -1


def wanted_states(model: Any, options: EngineOptions, n_ubatch: int) -> int:
    """How many earlier states to ask libllama for. It aborts if a micro-batch has no more tokens than there are states.
    It gives none to models that it cannot set back.
    """
    if lib.llama_model_n_swa(model):  # tokens that have left the window cannot come back
        return 0
    return max(min(options.max_rolled_back, n_ubatch - 2), 0)


def even_out(spans: Sequence[Span], *, n_ubatch: int, n_ctx: int, unified: bool) -> None:
    """Make a step with drafts one micro-batch. Some drafts are shortened, and the other spans are padded. Without
    drafts it stays as it is.
    """
    length = _common_length(spans, n_ubatch, n_ctx) if unified or _is_adjacent(spans) else 0
    for span in spans:
        span.draft = span.draft[:length]
        if length:
            span.padding = length - len(span.draft)
        if not span.draft:
            span.draft_source = None


def _is_adjacent(spans: Sequence[Span]) -> bool:
    return all(after.sequence == before.sequence + 1 for before, after in pairwise(spans))


def _common_length(spans: Sequence[Span], n_ubatch: int, n_ctx: int) -> int:
    """The length with which most tokens are drafted. At most as many are padding. 0: no drafts."""
    if any(len(span.tokens) > 1 for span in spans):
        return 0
    most = min(n_ubatch // len(spans), n_ctx - max(span.start for span in spans)) - 1

    def drafted(length: int) -> int:
        return sum(min(len(span.draft), length) for span in spans)

    lengths = {min(len(span.draft), most) for span in spans}
    useful = (length for length in lengths if length > 0 and 2 * drafted(length) >= length * len(spans))
    return max(useful, key=lambda length: (drafted(length), -length), default=0)


def probe_rollback(context: Any, memory: CheckpointMemory, compute: Callable[[Span], None], *, n_vocab: int) -> int:
    """How many of the newest tokens can be removed again. `compute` runs a step with the span alone."""
    most = int(lib.llama_n_rs_seq(context))
    if not most:
        return 0

    def decode(start: int, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        compute(Span(0, start, list(tokens), sampler=True))
        return np.ctypeslib.as_array(lib.llama_get_logits(context), (n_vocab,)).copy()

    # Any tokens: the rows must differ with the tokens before, not make sense.
    if rolls_back(memory, decode, most, [(7 * number + 11) % n_vocab for number in range(most + 2)]):
        return most
    sys.stderr.write("<4>nothing is drafted: libllama does not set this model's recurrent states back exactly\n")
    return 0


def rolls_back(
    memory: CheckpointMemory,
    decode: Callable[[int, Sequence[int]], npt.NDArray[np.float32]],
    most: int,
    tokens: Sequence[int],
) -> bool:
    """Whether a sequence that was set back gives the logits of one that never had the removed tokens: by one token and
    by as many as possible, and also from a checkpoint of it. `decode` computes tokens of sequence 0 from a position on,
    and returns the logits of the last one. There are at least two more `tokens` than `most`.
    """
    first, *drafted = tokens[: most + 1]

    def row(drafts: int, kept: int, *, is_copied: bool = False) -> npt.NDArray[np.float32]:
        memory.apply([Forget(0)])
        decode(0, [first, *drafted[:drafts]])
        length = 1 + kept
        if kept < drafts:
            memory.roll_back(0, length)
        if is_copied:
            memory.apply([SaveCheckpoint(0, length, _CHECKPOINT), LoadCheckpoint(0, length, _CHECKPOINT)])
            memory.apply([Drop(_CHECKPOINT)])
        return decode(length, tokens[most + 1 : most + 2])

    try:
        unchanged = row(most, most)
        for kept in {0, most - 1}:
            expected = row(kept, kept)
            allowed = _distance(unchanged, expected) / _NEARER
            for is_copied in (False, True):
                if not _distance(row(most, kept, is_copied=is_copied), expected) <= allowed:
                    return False
    except DecodeFailed:
        return False
    finally:
        memory.apply([Forget(0)])
    return True


def _distance(row: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    return float(np.square(row.astype(np.float64) - other).sum())

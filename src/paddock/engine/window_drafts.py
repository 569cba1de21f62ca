"""Drafts for models with sliding windows: which drafts can be removed again without a loss.

libllama reuses the cells that are outside the window of the next token of their sequence, as it was before the
micro-batch. The first token of a span is always kept. So if it and all drafts after it are computed in one micro-batch,
or the first token in one and all drafts in the next, a reused cell was outside the window also without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddock.engine.libllama import lib
from paddock.engine.loading import metadata
from paddock.errors import DecodeFailed
from paddock.types import Span

# Their windows are cut at multiples of the size, or their layers keep more than a window.
_OTHER_WINDOWS = ("llama4", "deepseek4", "dflash", "dots3note")


def has_removable_drafts(model: Any) -> bool:
    """Whether the model has sliding windows and no other state that cannot be cut."""
    has_state = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
    has_windows = bool(lib.llama_model_n_swa(model)) and not has_state
    return has_windows and metadata(model, "general.architecture") not in _OTHER_WINDOWS


def shorten_drafts(spans: Sequence[Span], *, n_ubatch: int, unified: bool) -> None:
    """Shorten drafts so that they can be removed again. Unified cells take a step in one micro-batch, if it is not too
    large. Streams take equally many tokens of each sequence in a micro-batch, so all drafts get one length.
    """
    total = sum(len(span.tokens) + len(span.draft) for span in spans)
    length = _common_length(spans, n_ubatch)
    for span in spans:
        if not unified:
            span.draft = span.draft[:length] if len(span.draft) >= length and len(span.tokens) == 1 else []
        elif total > n_ubatch:
            span.draft = []
        if not span.draft:
            span.draft_source = None


def check_window(memory: Any, sequence: int, length: int, window: int) -> None:
    """Raises `DecodeFailed` if a token in the window of the next one is missing, after a sequence was cut to this
    length. libllama would compute without it.
    """
    first = int(lib.llama_memory_seq_pos_min(memory, sequence))
    if not 0 <= first <= max(length + 1 - window, 0):
        raise DecodeFailed(f"sequence {sequence} has {length} tokens, but its window starts at {first}")


def _common_length(spans: Sequence[Span], n_ubatch: int) -> int:
    """The length of drafts with which most tokens are drafted. No other span may end between the first token and the
    last draft.
    """
    lengths = [len(span.draft) for span in spans if span.draft and len(span.tokens) == 1]
    others = [len(span.tokens) for span in spans if not span.draft or len(span.tokens) > 1]
    most = min([n_ubatch // len(spans), *(size for size in others if size > 1)]) - 1
    possible = [min(length, most) for length in lengths if most > 0]
    return max(possible, key=lambda length: length * sum(other >= length for other in lengths), default=0)

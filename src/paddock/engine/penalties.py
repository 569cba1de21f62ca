"""Penalties for tokens that were used before: repetition, frequency and presence penalties, and DRY."""

from __future__ import annotations

import math

import numpy as np

from paddock.engine.candidates import Ids, Logits
from paddock.engine.history import History
from paddock.types import SamplingParams

# A token with this penalty is never chosen, and float32 can hold it.
_LARGEST_PENALTY = 1e34


def penalizes_repeats(params: SamplingParams) -> bool:
    changes = params.repeat_penalty != 1 or params.presence_penalty or params.frequency_penalty
    return bool(params.repeat_last_n and changes)


def penalize_repeats(row: Logits, history: History, params: SamplingParams) -> tuple[Ids, Logits]:
    """The tokens whose logit changes, and their new logits."""
    ids, counts = history.counts(params.repeat_last_n)
    logits = row[ids]
    logits = np.where(logits <= 0, logits * params.repeat_penalty, logits / params.repeat_penalty)
    return ids, (logits - counts * params.frequency_penalty - params.presence_penalty).astype(np.float32)


def penalizes_sequences(params: SamplingParams) -> bool:
    return bool(params.dry_multiplier and params.dry_penalty_last_n) and params.dry_base >= 1


def penalize_sequences(row: Logits, history: History, params: SamplingParams) -> tuple[Ids, Logits]:
    """DRY: penalize tokens that would continue a repeated sequence. The penalty grows with the sequence."""
    ids, lengths = history.repeats(params.dry_penalty_last_n, params.dry_allowed_length)
    if not len(ids):
        return ids, row[ids]
    growth, most = math.log(params.dry_base), math.log(_LARGEST_PENALTY)
    # There are few different lengths, however long the text.
    different, which = np.unique(lengths, return_inverse=True)
    powers = [min((length - params.dry_allowed_length) * growth, most) for length in different.tolist()]
    penalties = [min(params.dry_multiplier * math.exp(power), _LARGEST_PENALTY) for power in powers]
    return ids, row[ids] - np.where(history.is_breaker(ids), np.float32(0), np.array(penalties, np.float32)[which])

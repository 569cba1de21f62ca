"""Helpers for tests of samplers."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Logits
from paddock.engine.sampler import Sampler
from paddock.types import Sampled


def choose_all(rows: Logits, samplers: Sequence[Sampler]) -> list[Sampled]:
    """Choose a token for each row with its own sampler."""
    return BatchSampler(samplers).choose(rows)

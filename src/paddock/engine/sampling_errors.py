"""Errors of sampling. Each fails one request and never the worker."""

from __future__ import annotations

import math

from paddock.errors import ConstraintFailed, DecodeFailed, PaddockError, SamplingFailed
from paddock.types import SamplingParams


def no_token_left(params: SamplingParams, constraint: str) -> PaddockError:
    """The error where every token is forbidden. `constraint` is the field of the grammar or schema, or empty."""
    banned = any(amount == -math.inf for _, amount in params.logit_bias)
    forbidding = ["logit_bias"] * banned + ["ignore_eos"] * params.ignore_eos
    if constraint and forbidding:
        return ConstraintFailed(
            f"no token is allowed: {constraint} allows only tokens that {' and '.join(forbidding)} "
            f"forbids; remove {constraint} or {forbidding[0]}",
            param=constraint,
        )
    if constraint:
        return ConstraintFailed(f"the answer cannot match {constraint}: it allows no token here", param=constraint)
    if forbidding:
        return ConstraintFailed(
            f"no token is allowed: {' and '.join(forbidding)} forbids every token", param=forbidding[0]
        )
    return DecodeFailed("the model gave no token a probability: all logits are -inf or NaN")


def sampling_failed(error: BaseException) -> SamplingFailed:
    """The error for a bug in Paddock or llguidance. The cause is kept for the log.

    A panic in llguidance is a `BaseException` but no `Exception`, so callers catch both.
    """
    failure = SamplingFailed(f"sampling the next token failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure

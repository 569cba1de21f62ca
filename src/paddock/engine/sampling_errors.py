"""Why no token could be chosen for one request. Such an error ends that request alone, never the worker."""

from __future__ import annotations

import math

from paddock.errors import ConstraintFailed, DecodeFailed, PaddockError
from paddock.types import SamplingParams


def no_token_left(params: SamplingParams, constraint: str) -> PaddockError:
    """Every token is forbidden. `constraint` is the request's field that names a grammar or schema, or empty."""
    banned = any(amount == -math.inf for _, amount in params.logit_bias)
    forbidding = ["logit_bias"] * banned + ["ignore_eos"] * params.ignore_eos
    if constraint and forbidding:
        return ConstraintFailed(
            f"no token is left to continue with: {constraint} allows only tokens that {' and '.join(forbidding)} "
            f"forbids; remove {constraint} or {forbidding[0]}",
            param=constraint,
        )
    if constraint:
        return ConstraintFailed(
            f"the answer could not be kept within {constraint}: no token is left that it allows", param=constraint
        )
    if forbidding:
        return ConstraintFailed(
            f"no token is left to continue with: {' and '.join(forbidding)} forbids every one", param=forbidding[0]
        )
    return DecodeFailed("the model gave no token a probability: all its logits are -inf or not a number")


def sampling_failed(error: Exception) -> PaddockError:
    """A defect of ours, met in one request. The cause is kept for the log."""
    failure = PaddockError(f"the next token could not be chosen: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure

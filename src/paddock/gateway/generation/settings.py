"""Sampling parameters as `/props` and `/slots` show them, with llama-server's names and defaults."""

from __future__ import annotations

import math
from typing import Any

from paddock.types import Adapters, SamplingParams

_RANDOM_SEED = 0xFFFFFFFF
"""llama-server's value for a random seed."""


def generation_settings(sampling: SamplingParams, *, max_tokens: int | None, adapters: Adapters) -> dict[str, Any]:
    settings: dict[str, Any] = {name: getattr(sampling, name) for name in SamplingParams.__struct_fields__}
    if sampling.seed is None:
        settings["seed"] = _RANDOM_SEED
    settings["n_probs"] = max(sampling.n_probs, 0)
    # JSON has no infinity; requests use false too.
    settings["logit_bias"] = [[token, False if math.isinf(bias) else bias] for token, bias in sampling.logit_bias]
    limit = -1 if max_tokens is None else max_tokens
    lora = [{"id": number, "scale": scale} for number, scale in adapters]
    return settings | {"max_tokens": limit, "n_predict": limit, "lora": lora}

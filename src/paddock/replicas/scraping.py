"""Parses the metrics page of a llama.cpp-compatible server: one number for each name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

PROCESSING: Final = "llamacpp:requests_processing"
_LINE = re.compile(r"^(llamacpp:[a-z_]+)(?:\{([^}]*)\})?\s+(\S+)")
_MODEL = re.compile(r'(?:^|,)\s*model_id="((?:[^"\\]|\\.)*)"')
# Aggregated by maximum over the models of a server; all others by sum.
_LARGEST = frozenset({"llamacpp:n_tokens_max", "llamacpp:kv_cache_usage_ratio"})


def busy(metrics: Mapping[str, float], processing: Sequence[bool] | None) -> int:
    """The requests on a server, from all clients: by its metrics or, without metrics, by its busy slots.

    `processing` is the state of each slot; None if the server does not show its slots.
    """
    if PROCESSING in metrics:
        return int(metrics[PROCESSING] + metrics.get("llamacpp:requests_deferred", 0))
    return sum(processing or ())


def scraped(page: str, model: str) -> Mapping[str, float]:
    """The values of this model, if the server labels several models. Lines without a number are skipped."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, text = match.groups()
        named = _MODEL.search(labels or "")
        if named is not None and named[1] != model:
            continue
        try:
            value = float(text)
        except ValueError:
            continue
        before = found.get(name, 0.0)
        found[name] = max(before, value) if name in _LARGEST else before + value
    return found

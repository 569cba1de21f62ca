"""Out of a page of metrics what a llama.cpp-compatible server counts, as one number for each name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

PROCESSING: Final = "llamacpp:requests_processing"
_LINE = re.compile(r"^(llamacpp:[a-z_]+)(?:\{([^}]*)\})?\s+(\S+)")
_MODEL = re.compile(r'(?:^|,)\s*model_id="((?:[^"\\]|\\.)*)"')
# Of several that are behind one address, the largest stands for all; everything else adds up.
_LARGEST = frozenset({"llamacpp:n_tokens_max", "llamacpp:kv_cache_usage_ratio"})


def busy(metrics: Mapping[str, float], processing: Sequence[bool] | None) -> int:
    """How many requests a server has, whoever sent them: what it counts or, where it counts nothing, how many of its
    slots are in use. `processing` says that of each slot; None if it does not show its slots.
    """
    if PROCESSING in metrics:
        return int(metrics[PROCESSING] + metrics.get("llamacpp:requests_deferred", 0))
    return sum(processing or ())


def scraped(page: str, model: str) -> Mapping[str, float]:
    """Of this model, where the server has several and tells them apart; lines that are no numbers are passed over."""
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

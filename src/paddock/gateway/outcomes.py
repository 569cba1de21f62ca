"""What the log says of an answer once all is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import Request

from paddock.fleet import Generation
from paddock.wire import Pooled

OUTCOME: Final = "paddock.outcome"
"""Where a request's scope has the function that tells, as fields of the log's line."""
Outcome = Callable[[], dict[str, Any]]


def note_model(request: Request, model: str) -> None:
    request.scope[OUTCOME] = lambda: {"model": model}


def note_generations(request: Request, model: str, generations: Sequence[Generation]) -> None:
    def outcome() -> dict[str, Any]:
        ends = [end for generation in generations for end in generation.ends]
        usages = [end.usage for end in ends if end.usage is not None]
        reasons = sorted({end.finish for end in ends if end.finish is not None})
        return {
            "model": model,
            "prompt_tokens": sum(generation.prompt_tokens for generation in generations),
            "cached_tokens": sum(usage.cached_tokens for usage in usages),
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
            "finish_reason": ",".join(reasons) or None,
        }

    request.scope[OUTCOME] = outcome


def note_pooled(request: Request, model: str, pooled: Pooled) -> None:
    request.scope[OUTCOME] = lambda: {"model": model, "prompt_tokens": pooled.tokens}

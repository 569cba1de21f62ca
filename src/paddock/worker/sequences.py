"""What the scheduler receives for each answer to a request."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable

import msgspec

from paddock.engine import Engine
from paddock.scheduling import Request
from paddock.types import DraftParams, EngineOptions, GenerateRequest
from paddock.worker.answers import Answer
from paddock.worker.preparation import PreparedPrompt
from paddock.worker.prompts import Reply


def scheduler_requests(
    id: int, request: GenerateRequest, prompt: PreparedPrompt, engine: Engine, options: EngineOptions, now: float
) -> Callable[[int], Request]:
    """A function from the index of an answer to its scheduler request. `now` is when the request was accepted."""
    seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
    digest = hashlib.sha256(array("i", prompt.tokens)).hexdigest() if prompt.reply is not None else ""
    draft = _draft(request, prompt.reply, options.draft)

    def build(index: int) -> Request:
        # Each answer has its own seed. The first answer is the same as if it were the only one.
        sampling = msgspec.structs.replace(request.sampling, seed=seed + index)
        return Request(
            id,
            prompt.tokens,
            prompt.sampler.sibling(sampling),
            request.max_tokens if request.max_tokens is not None else engine.info.n_ctx,
            answer=Answer(
                request,
                engine.vocab,
                prompt.reply,
                stops=prompt.stops,
                call_ids=f"{seed + index} {digest}",
                accepted=now,
            ),
            index=index,
            namespace=request.origin.tenant if request.cache_prompt else None,
            wanted_slot=request.id_slot,
            deterministic=request.deterministic or options.deterministic,
            adapters=request.adapters,
            prompt_probs=request.prompt_probs,
            key=request.origin.key,
            weight=request.origin.weight,
            batch=request.origin.batch,
            draft=draft,
        )

    return build


def _draft(request: GenerateRequest, reply: Reply | None, default: DraftParams) -> DraftParams | None:
    """None: no drafting. A thinking budget may end the reasoning at any token, so drafted tokens could be wrong."""
    if reply is not None and reply.thinking_budget is not None:
        return None
    wanted = {"n_max": request.draft_n_max, "n_min": request.draft_n_min, "p_min": request.draft_p_min}
    return msgspec.structs.replace(default, **{name: value for name, value in wanted.items() if value is not None})

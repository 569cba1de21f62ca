"""What the scheduler receives for each answer to a request."""

from __future__ import annotations

import hashlib
import secrets
import sys
from array import array
from collections.abc import Callable

import msgspec

from paddock.engine import Engine, Vocab
from paddock.receipts import token_digest
from paddock.scheduling import ContextShift, Request
from paddock.types import DraftParams, EngineOptions, GenerateRequest
from paddock.worker.answer_trace import AnswerTrace
from paddock.worker.answers import Answer
from paddock.worker.cache_reports import Explanation
from paddock.worker.preparation import PreparedPrompt


def scheduler_requests(
    id: int,
    request: GenerateRequest,
    prompt: PreparedPrompt,
    engine: Engine,
    options: EngineOptions,
    now: float,
    explanation: Explanation | None = None,
) -> Callable[[int], Request]:
    """A function from the index of an answer to its scheduler request. `now` is when the request was accepted."""
    seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
    digest = hashlib.sha256(array("i", prompt.tokens)).hexdigest() if prompt.reply is not None else ""
    prompt_digest = token_digest(prompt.tokens) if request.receipt else ""
    draft = _draft(request, options.draft)
    # A shift would cut images.
    may_shift = options.context_shift and not prompt.media
    shift = _shift(request, len(prompt.tokens), engine.vocab) if may_shift else None
    is_shared = request.cache_prompt and not any(span.is_private for span in prompt.media)
    most = engine.info.n_ctx if shift is None else sys.maxsize

    def build(index: int) -> Request:
        # Each answer has its own seed. The first answer is the same as if it were the only one.
        sampling = msgspec.structs.replace(request.sampling, seed=seed + index)
        answer = Answer(
            request,
            engine.vocab,
            prompt.reply,
            stops=prompt.stops,
            call_ids=f"{seed + index} {digest}",
            accepted=now,
            explanation=explanation,
            trace=AnswerTrace(prompt_digest, seed + index) if request.receipt else None,
        )
        sampler = prompt.sampler.sibling(sampling)
        sampler.step_limit = answer.step_limit
        return Request(
            id,
            prompt.tokens,
            sampler,
            most if request.max_tokens is None else request.max_tokens,
            answer=answer,
            index=index,
            namespace=request.origin.tenant if is_shared else None,
            wanted_slot=request.id_slot,
            deterministic=request.deterministic or options.deterministic,
            adapters=request.adapters,
            system_size=prompt.system_size,
            prompt_probs=request.prompt_probs,
            key=request.origin.key,
            weight=request.origin.weight,
            batch=request.origin.batch,
            draft=draft,
            shift=shift,
            media=prompt.media,
        )

    return build


def _shift(request: GenerateRequest, prompt_size: int, vocab: Vocab) -> ContextShift:
    """As in llama-server, `n_keep` does not count the first token if the vocabulary adds it."""
    keep = prompt_size if request.n_keep < 0 else request.n_keep
    return ContextShift(keep + vocab.adds_bos, request.n_discard)


def _draft(request: GenerateRequest, default: DraftParams) -> DraftParams | None:
    """None: no drafting."""
    default = default.limited(request.draft_type)
    n_max, lookup = default.n_max, default.lookup
    if request.draft_n_max is not None:
        n_max, lookup = (request.draft_n_max if most else 0 for most in (n_max, lookup))
    if request.draft_ngram_size_m is not None:
        lookup = min(lookup, request.draft_ngram_size_m)
    if not max(n_max, lookup):
        return None
    wanted = {"n_max": n_max, "lookup": lookup, "n_min": request.draft_n_min, "p_min": request.draft_p_min}
    return msgspec.structs.replace(default, **{name: value for name, value in wanted.items() if value is not None})

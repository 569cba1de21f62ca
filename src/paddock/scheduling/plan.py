"""The plan of one step: its spans, made from requests."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.scheduling.request import Request
from paddock.types import Adapters, Operation, Span

# Deterministic requests compute their prompts in chunks cut at multiples of this, and reuse prefixes up to a multiple,
# so that every token is always computed in a batch of the same shape.
GRID = 128


@dataclass(slots=True, frozen=True)
class Plan:
    """One step: the cache operations to carry out first, then the spans to decode and the request of each."""

    operations: list[Operation]
    spans: list[Span]
    requests: list[Request]
    decodes: int = 0

    @property
    def exact(self) -> bool:
        """Whether the step is for deterministic requests."""
        return bool(self.requests) and self.requests[0].deterministic

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters of the step."""
        return self.requests[0].adapters if self.requests else ()

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The start and size of each prompt chunk, with its padding."""
        return [(span.start, len(span.tokens) + span.padding) for span in self.prompts]

    @property
    def prompts(self) -> list[Span]:
        """The spans with prompt chunks."""
        return [
            span
            for span, request in zip(self.spans, self.requests, strict=True)
            if span.start < request.prompt_size or len(span.tokens) > 1
        ]


def make_span(request: Request, count: int) -> Span:
    """The next `count` tokens of a request, or the whole of an image that cannot be cut."""
    media = request.next_media if request.media else None
    end = media.end if media is not None and media.is_whole else request.computed + count
    is_complete = end == len(request.tokens) and request.max_tokens > 0
    span = Span(
        sequence=request.sequence,
        start=request.computed,
        tokens=request.tokens[request.computed : end],
        sampler=request.sampler if is_complete else None,
        media=media,
    )
    if request.needs_prompt_probs:
        span.targets = request.tokens[request.computed + 1 : min(end + 1, request.prompt_size)]
        span.target_probs = request.prompt_probs
    return span


def exact_chunk(request: Request, n_batch: int) -> int:
    """The next chunk of a deterministic request. It ends on the grid, or earlier if the batch is smaller."""
    if request.computed >= request.prompt_size:
        return 1  # also after a preemption: generated tokens are computed one by one, as the first time
    on_grid = (request.computed // GRID + 1) * GRID
    return min(min(request.prompt_size, on_grid, request.computed + n_batch) - request.computed, request.max_chunk)

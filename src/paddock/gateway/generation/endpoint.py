"""An endpoint that generates: how its body becomes requests, and how generations become its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from paddock.fleet import Generation
from paddock.gateway.generation.fields import GenerationFields, RequestContext
from paddock.types import GenerateRequest

Body = TypeVar("Body", bound=GenerationFields)
TraceKind = Literal["chat", "text_completion"]


class Answer(Protocol):
    """One answer on its way to the client."""

    async def whole(self) -> Any:
        """The body, when all generations are complete."""
        ...

    def events(self) -> AsyncGenerator[bytes]:
        """The events, framed. A `PaddockError` that it raises ends the stream with an error event."""
        ...


@dataclass(frozen=True, kw_only=True)
class Endpoint(Generic[Body]):
    paths: Sequence[str]
    name: str
    """The operation's name in OpenAPI."""
    description: str
    body: type[Body]
    parse: Callable[[Body, RequestContext], Sequence[GenerateRequest]]
    answer: Callable[[Body, str, Sequence[Generation]], Answer]
    """Called with the body, the model's name and one generation for each request."""
    trace_kind: TraceKind
    """The operation's name in traces, by OpenTelemetry's conventions."""
    responses: tuple[Any, ...]
    """The schemas of whole answers."""
    events: tuple[Any, ...]
    """The schemas of events."""
    ends_with_done: bool = False
    """Whether OpenAI's `[DONE]` ends the stream."""
    names_events: bool = False
    """Whether each event has its type as its name."""

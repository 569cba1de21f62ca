"""The declarations of a dialect's routes: endpoints that generate, and routes that do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from fastapi import Request

from paddock.fleet import Fleet, Generation, Model
from paddock.gateway.auth.caller import caller_of, model_to_run
from paddock.gateway.generation.fields import GenerationFields, ModelFields, RequestContext
from paddock.gateway.generation.receipts import StreamReceipt
from paddock.types import GenerateRequest, Origin

Body = TypeVar("Body", bound=GenerationFields)
Named = TypeVar("Named", bound=ModelFields)
TraceKind = Literal["chat", "text_completion"]


class Answer(Protocol):
    """The answer to one HTTP request."""

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
    answer: Callable[[Body, str, Sequence[Generation], StreamReceipt], Answer]
    """Called with the body, the model's name, one generation for each request, and what gives the receipt of a
    stream.
    """
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
    prepare: Callable[[Request, Body], Awaitable[Body]] | None = None
    """Adds what the server has stored to the body."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Named]):
    """A request to a route that does not generate."""

    request: Request
    fleet: Fleet
    body: Named

    @property
    def model(self) -> Model:
        return model_to_run(self.request, self.fleet, self.body.model)

    @property
    def origin(self) -> Origin:
        return caller_of(self.request).origin


@dataclass(frozen=True, slots=True)
class Route(Generic[Named]):
    """A route that does not generate and requires a key."""

    paths: Sequence[str]
    body: type[Named]
    response: Any
    """The schema of its answer."""
    handler: Callable[[Call[Named]], Awaitable[Any]]
    """Its name and its docstring describe the operation in OpenAPI."""
    events: ClassVar[tuple[Any, ...]] = ()
    ends_with_done: ClassVar[bool] = False
    names_events: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def description(self) -> str:
        return self.handler.__doc__ or ""

    @property
    def responses(self) -> tuple[Any, ...]:
        return (self.response,)

"""A dialect: one HTTP API, described by one object. `dialects/__init__.py` lists them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.batches import Batches
from paddock.config import ServerSettings
from paddock.conversations import Conversations
from paddock.errors import PaddockError
from paddock.fleet import Fleet
from paddock.gateway.auth.permissions import Permissions
from paddock.gateway.generation.conversation import renamed_params
from paddock.gateway.generation.endpoint import Call, Endpoint, Route
from paddock.gateway.generation.job_ids import read_generation
from paddock.gateway.generation.respond import respond
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.framing import SSE, Framing
from paddock.gateway.http.openapi import Error, describe
from paddock.gateway.http.responses import JSON, ErrorFormat, error_body
from paddock.gateway.ops.downloads import Downloads
from paddock.gateway.ops.reload import Reloader
from paddock.mcp import ToolServers


@dataclass(frozen=True, slots=True)
class Services:
    """The collaborators of the routes."""

    fleet: Fleet
    reloader: Reloader
    settings: ServerSettings
    downloads: Downloads
    tools: ToolServers
    batches: Batches | None = None
    """None where there are none, as on a cluster."""
    conversations: Conversations | None = None
    """None where nothing is stored."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What a dialect ignores or refuses is declared by the bodies of its endpoints (`BodyFields`)."""

    tag: str
    """Groups its routes in OpenAPI."""
    endpoints: Sequence[Endpoint[Any]] = ()
    """The routes that generate. They require a key."""
    routes: Sequence[Route[Any]] = ()
    """Other routes with a body. They require a key."""
    routers: Callable[[Services], Sequence[APIRouter]] = lambda _: ()
    """All other routes."""
    permissions: Permissions = field(default_factory=dict)
    """What those require."""
    framing: Framing = SSE
    keep_alive: bytes | None = None
    """Sent while a stream is silent, if not the framing's own."""
    prefixes: Sequence[str] = ()
    """Paths that begin with one of these have errors of this dialect's shape."""
    error_body: Callable[[PaddockError], Any] = error_body
    error_schema: Any = Error
    schema_prefix: str = ""
    """Makes the names of its schemas in OpenAPI unique."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """Its names for fields that errors name as chat completions do."""

    @property
    def error_format(self) -> ErrorFormat:
        return ErrorFormat(self.error_body, self.framing)

    @property
    def declared(self) -> list[Endpoint[Any] | Route[Any]]:
        return [*self.routes, *self.endpoints]

    def all_permissions(self) -> list[Permissions]:
        return [self.permissions, {"key": [f"POST {path}" for each in self.declared for path in each.paths]}]

    def all_routers(self, services: Services) -> list[APIRouter]:
        router = APIRouter(tags=[self.tag])
        for declared in self.declared:
            handler = self._handler(declared, services)
            for path in declared.paths:
                router.add_api_route(
                    path,
                    handler,
                    methods=["POST"],
                    name=declared.name,
                    description=declared.description,
                    **self._describe(declared),
                )
        return [*([router] if router.routes else []), *self.routers(services)]

    def _describe(self, declared: Endpoint[Any] | Route[Any]) -> dict[str, Any]:
        return describe(
            *declared.responses,
            body=declared.body,
            events=declared.events,
            done=declared.ends_with_done,
            named=declared.names_events,
            framing=self.framing,
            error=self.error_schema,
            prefix=self.schema_prefix,
        )

    def _handler(self, declared: Endpoint[Any] | Route[Any], services: Services) -> Callable[..., Any]:
        limit = services.settings.max_body_bytes

        async def generate(request: Request) -> Response:
            assert isinstance(declared, Endpoint)
            body = await read_generation(request, declared.body, limit=limit)
            if declared.prepare is not None:
                body = await declared.prepare(request, body)
            return await respond(
                request,
                services.fleet,
                declared,
                body,
                framing=self.framing,
                field_names=self.field_names,
                keep_alive=self.keep_alive,
            )

        async def answer(request: Request) -> Response:
            assert isinstance(declared, Route)
            call = Call(request, services.fleet, await read_body(request, declared.body, limit=limit))
            with renamed_params(self.field_names):
                answer = await declared.handler(call)
            return answer if isinstance(answer, Response) else JSON(answer)

        return generate if isinstance(declared, Endpoint) else answer

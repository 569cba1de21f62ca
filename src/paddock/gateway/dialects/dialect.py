"""A dialect: one HTTP API, described by one object. `dialects/__init__.py` lists them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.config import ServerSettings
from paddock.errors import PaddockError
from paddock.fleet import Fleet, Model
from paddock.gateway.auth.caller import model_for
from paddock.gateway.auth.permissions import Permissions
from paddock.gateway.generation.endpoint import Endpoint
from paddock.gateway.generation.fields import ModelFields
from paddock.gateway.generation.job_ids import read_generation
from paddock.gateway.generation.respond import respond
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.framing import SSE, Framing
from paddock.gateway.http.openapi import Error, describe
from paddock.gateway.http.responses import ErrorFormat, error_body
from paddock.gateway.ops.reload import Reloader

Body = TypeVar("Body", bound=ModelFields)


@dataclass(frozen=True, slots=True)
class Services:
    """What routes work with."""

    fleet: Fleet
    reloader: Reloader
    settings: ServerSettings

    async def read(self, request: Request, schema: type[Body]) -> tuple[Body, Model]:
        """The body of a request, and the model that it names."""
        body = await read_body(request, schema, limit=self.settings.max_body_bytes)
        return body, model_for(request, self.fleet, body.model)


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What a dialect ignores or refuses is declared by the bodies of its endpoints (`BodyFields`)."""

    tag: str
    """Groups its routes in OpenAPI."""
    endpoints: Sequence[Endpoint[Any]] = ()
    """The routes that generate. They require a key."""
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

    def all_permissions(self) -> list[Permissions]:
        return [self.permissions, {"key": [f"POST {path}" for each in self.endpoints for path in each.paths]}]

    def all_routers(self, services: Services) -> list[APIRouter]:
        router = APIRouter(tags=[self.tag])
        for endpoint in self.endpoints:
            handler = self._handler(endpoint, services)
            for path in endpoint.paths:
                router.add_api_route(
                    path,
                    handler,
                    methods=["POST"],
                    name=endpoint.name,
                    description=endpoint.description,
                    **self._describe(endpoint),
                )
        return [*self.routers(services), *([router] if self.endpoints else [])]

    def _describe(self, endpoint: Endpoint[Any]) -> dict[str, Any]:
        return describe(
            *endpoint.responses,
            body=endpoint.body,
            events=endpoint.events,
            done=endpoint.ends_with_done,
            named=endpoint.names_events,
            framing=self.framing,
            error=self.error_schema,
            prefix=self.schema_prefix,
        )

    def _handler(self, endpoint: Endpoint[Any], services: Services) -> Callable[..., Any]:
        async def generate(request: Request) -> Response:
            body = await read_generation(request, endpoint.body, limit=services.settings.max_body_bytes)
            return await respond(
                request,
                services.fleet,
                endpoint,
                body,
                framing=self.framing,
                field_names=self.field_names,
                keep_alive=self.keep_alive,
            )

        return generate

"""`POST /predict`: Vertex AI's protocol, where each instance is a request to another route."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import Field

from paddock.errors import InvalidRequest
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.disconnect import until_disconnect
from paddock.gateway.http.fields import BodyFields
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON, error_body
from paddock.gateway.http.scope import METER
from paddock.gateway.http.subrequests import post_json

_PATH: Final = "/predict"
_FORMAT: Final = "@requestFormat"
_MOST_INSTANCES: Final = 128


class PredictRequest(BodyFields):
    """Each instance is the body of a request, and names its route in `@requestFormat`: a path, or the path in camel
    case without `/v1`, such as `chatCompletions`.
    """

    instances: Annotated[list[dict[str, Any]], Field(max_length=_MOST_INSTANCES)]


class Predictions(msgspec.Struct):
    predictions: list[Any]
    """The answer to each instance, or its error."""


def predict_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.post(_PATH, **describe(Predictions, body=PredictRequest))
    async def predict(request: Request) -> Response:
        """Answer requests to other routes, by Vertex AI's prediction protocol. Nothing is streamed."""
        body = await read_body(request, PredictRequest, limit=services.settings.max_body_bytes)
        request.scope.pop(METER).close()  # each instance has a meter of its own
        formats = request_formats(_post_paths(request))
        answers = [_answer(request, instance, formats) for instance in body.instances]
        return JSON(Predictions(await until_disconnect(request, _all(answers))))

    return router


async def _all(answers: Iterable[Any]) -> list[Any]:
    return list(await asyncio.gather(*answers))


async def _answer(request: Request, instance: dict[str, Any], formats: dict[str, str]) -> Any:
    """Errors have no status of their own here: the body of the error is the prediction."""
    name = instance.get(_FORMAT)
    if not isinstance(name, str):
        return error_body(InvalidRequest(f"each instance must include a string {_FORMAT}", param="instances"))
    if name not in formats:
        return error_body(InvalidRequest(f"no handler registered for {_FORMAT}: {name}", param="instances"))
    payload = {key: value for key, value in instance.items() if key not in (_FORMAT, "stream")}
    response = await post_json(request, formats[name], msgspec.json.encode(payload))
    return msgspec.Raw(response.body or b"null")


def _post_paths(request: Request) -> list[str]:
    found = [
        route.path_format or ""
        for route in iter_route_contexts(request.app.routes)
        if isinstance(route.original_route, APIRoute) and "POST" in (route.methods or ())
    ]
    return [path for path in found if "{" not in path and path != _PATH]


def request_formats(paths: Iterable[str]) -> dict[str, str]:
    """The path of each request format. A camel-case name that two paths have means the one below `/v1`."""
    formats: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: not path.startswith("/v1/")):
        formats[path] = path
        formats.setdefault(_camel_case(path.removeprefix("/v1").removeprefix("/")), path)
    return formats


def _camel_case(path: str) -> str:
    return re.sub(r"[/_-]+(.?)", lambda match: match[1].upper(), path)

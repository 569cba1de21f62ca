"""Request bodies: read within a limit, parsed strictly, refused by naming the field."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from paddock.config import nearest
from paddock.errors import InvalidJSON, InvalidRequest, PaddockError, RequestTooLarge, UnsupportedParameter

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, schema: type[Body], *, limit: int, optional: bool = False) -> Body:
    """The body as its schema has it. An `optional` one may be left out, which says the same as an empty object."""
    data = await _read(request, limit)
    if optional and not data:
        data = b"{}"
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        raise _explain(error, schema) from None


def describe_body(schema: type[BaseModel]) -> dict[str, Any]:
    """Tells OpenAPI what `read_body` reads."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise RequestTooLarge(f"the body has {declared} bytes; the limit is {limit}")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise RequestTooLarge(f"the body has more than {limit} bytes")
    except ClientDisconnect:
        raise InvalidRequest("the client went away while sending the body") from None
    return bytes(body)


def _explain(error: ValidationError, schema: type[BaseModel]) -> PaddockError:
    """The first problem, in a sentence, with the field as `messages[0].role`."""
    problem = error.errors(include_url=False)[0]
    param = _path(problem["loc"])
    match problem["type"]:
        case "json_invalid":
            return InvalidJSON(f"the body is not valid JSON: {problem['ctx']['error']}")
        case "extra_forbidden":
            known = [name for name in schema.model_fields if name != param]
            return UnsupportedParameter(f"unknown parameter {param!r}{nearest(param, known)}", param=param)
        case _ if not problem["loc"]:
            return InvalidRequest(f"the body must be a JSON object: {problem['msg']}")
        case _:
            return InvalidRequest(f"{param}: {problem['msg']}", param=param)


def _path(location: tuple[Any, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():  # not the names that pydantic gives to the branches of a union
            path += f".{part}" if path else part
    return path

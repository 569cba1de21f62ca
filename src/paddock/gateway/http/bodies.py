"""Request bodies: read within a limit and parsed strictly. Errors name the field.

A field that no endpoint knows is ignored, and named in a header of the response (see `docs/guides/http-api.md`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Set
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from paddock.config import nearest
from paddock.errors import (
    ClientLeft,
    InvalidJSON,
    InvalidRequest,
    PaddockError,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedParameter,
)
from paddock.gateway.http.body_budget import BodyBudget, Pace
from paddock.gateway.http.fields import BodyFields
from paddock.gateway.http.lenient import rename, repair
from paddock.gateway.http.parse_turns import ParseTurns
from paddock.gateway.http.scope import AUDITED, BODY, GIVEN, HELD, IGNORED, owner_of
from paddock.gateway.http.sizes import MOST_MISTAKES, refuse_bulk, too_deep

Body = TypeVar("Body", bound=BaseModel)

_PIECE = 128 * 1024
_MOST_NAMES, _LONGEST_NAME = 16, 80
_MOST_REPAIRS = 100


async def read_body(
    request: Request, schema: type[Body], *, limit: int, optional: bool = False, exact: bool = False
) -> Body:
    """Read and validate the body. An `optional` body may be absent, which is the same as an empty object.

    Fields that the schema does not know are ignored, unless the body must be `exact`.
    """
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise InvalidRequest(f"the body has the content-encoding {encoding[:40]!r}: send it without compression")
    data = await read_bytes(request, limit)
    return await parse_read(request, data or b"{}" if optional else data, schema, exact=exact)


async def parse_read(request: Request, data: bytes, schema: type[Body], *, exact: bool = False) -> Body:
    """Validate a body that has been read."""
    if BODY in request.scope:
        request.scope[BODY] = data
    if AUDITED in request.scope:
        request.scope[AUDITED]["body"] = data
    rules: BodyRules = request.app.state.body_rules
    async with rules.turns.turn(owner_of(request), len(data)):
        body, ignored = parse_body(data, schema, rules, exact=exact)
    if getattr(body, "receipt", None):
        request.scope[GIVEN] = data
    if ignored:
        request.scope[IGNORED] = _header(ignored)
    return body


async def read_stream(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces, for a route that does not keep it in memory. The least rate applies as to other bodies; only
    the time counts in which the server waits for the client.
    """
    rules: BodyRules = request.app.state.body_rules
    now = asyncio.get_running_loop().time
    waited = 0.0
    pace = Pace(rules.timeout, rules.rate, waited)
    pieces = aiter(request.stream())
    while True:
        begun = now()
        try:
            async with asyncio.timeout(pace.deadline - waited):
                piece = await anext(pieces, None)
        except ClientDisconnect:
            raise InvalidRequest("the client disconnected while it sent the body") from None
        except TimeoutError:
            raise RequestTimeout(
                f"the body arrives too slowly: at least {rules.rate * rules.timeout:.0f} bytes are required every "
                f"{rules.timeout:g} s"
            ) from None
        if piece is None:
            return
        waited += now() - begun
        pace.received(len(piece), waited)
        yield piece


def parse_body(data: bytes, schema: type[Body], rules: BodyRules, *, exact: bool = False) -> tuple[Body, list[str]]:
    """The body, and the fields that were ignored or changed. Raises `PaddockError` with the field."""
    try:
        return _parse(data, schema, rules.generation_fields, exact=exact)
    except InvalidRequest as error:
        if exact or not rules.lenient:
            raise
        body, ignored = _parse_leniently(data, schema, rules.generation_fields, error)
        if getattr(body, "receipt", None):
            raise  # the receipt must have a request that every server understands
        return body, ignored


def _parse(data: bytes, schema: type[Body], generation_fields: Set[str], *, exact: bool) -> tuple[Body, list[str]]:
    """The body, and the paths of the fields that were ignored."""
    refuse_bulk(data, getattr(schema, "token_lists", frozenset()))
    try:
        body = schema.model_validate_json(data, context=generation_fields)
    except ValidationError as error:
        problems = _problems(error)
    else:
        return body, _ignored_by(body)
    unknown = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    if exact or len(unknown) < len(problems):
        raise _explain(problems, schema)
    # A second validation without them: only requests with unknown fields pay for it.
    content = json.loads(data)
    ignored = [_remove(content, place) for place in unknown]
    try:
        body = schema.model_validate_json(json.dumps(content), context=generation_fields)
    except ValidationError as error:
        raise _explain(_problems(error), schema) from None
    return body, [*ignored, *_ignored_by(body)]


def _parse_leniently(
    data: bytes, schema: type[Body], generation_fields: Set[str], error: InvalidRequest
) -> tuple[Body, list[str]]:
    """The body as llama-server understands it, and the fields that were changed or ignored. `error` is why the body is
    not valid; it is raised if llama-server's rules do not help.
    """
    if isinstance(error, InvalidJSON):
        raise error
    content = json.loads(data)
    if not isinstance(content, dict):
        raise error
    rename(content, schema.model_fields)
    if issubclass(schema, BodyFields):
        content = {**schema.lenient_defaults, **content}
    changed: list[str] = []
    for _ in range(_MOST_REPAIRS):
        try:
            body = schema.model_validate_json(json.dumps(content), context=generation_fields)
        except UnsupportedParameter as refused:
            if refused.param is None or refused.param not in content:
                raise
            del content[refused.param]
            changed.append(refused.param)
        except ValidationError as invalid:
            repaired, left = repair(content, _problems(invalid), _remove)
            if left:
                raise _explain(left, schema) from None
            changed += repaired
        else:
            return body, [*dict.fromkeys(changed), *_ignored_by(body)]
    raise error


def _ignored_by(body: BaseModel) -> list[str]:
    return body.ignored() if isinstance(body, BodyFields) else []


@dataclass(frozen=True, slots=True)
class BodyRules:
    timeout: float
    rate: int
    budget: BodyBudget
    turns: ParseTurns
    lenient: bool = False
    """Take what llama-server takes."""
    generation_fields: Set[str] = frozenset()
    """The fields of all endpoints that generate. One endpoint's field is an error at another, not unknown."""


async def read_bytes(request: Request, limit: int) -> bytes:
    """The whole body. Raises `PaddockError` for one that is too large or arrives too slowly."""
    rules: BodyRules = request.app.state.body_rules
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise RequestTooLarge(f"the body has {declared} bytes; the limit is {limit} (server.max_body_bytes)")
    held = request.scope[HELD] = rules.budget.open(owner_of(request))
    # In pieces: a large buffer that grows is copied again and again, and fragments the heap.
    pieces = [bytearray()]
    now = asyncio.get_running_loop().time
    begun = now()
    pace = Pace(rules.timeout, rules.rate, begun)
    try:
        async with asyncio.timeout_at(pace.deadline) as deadline:
            async for chunk in request.stream():
                if held.size + len(chunk) > limit:
                    raise RequestTooLarge(f"the body has more than {limit} bytes (server.max_body_bytes)")
                held.grow(len(chunk))
                if len(pieces[-1]) >= _PIECE:
                    pieces.append(bytearray())
                pieces[-1] += chunk
                pace.received(len(chunk), now())
                deadline.reschedule(pace.deadline)
    except ClientDisconnect:
        raise ClientLeft("the client disconnected while it sent the body") from None
    except TimeoutError:
        raise RequestTimeout(
            f"the body arrives too slowly: {held.size} bytes in {now() - begun:.1f} s; at least "
            f"{rules.rate * rules.timeout:.0f} bytes are required every {rules.timeout:g} s"
        ) from None
    else:
        return b"".join(pieces)
    finally:
        pieces.clear()  # an exception keeps this frame alive until the garbage collector runs


def _problems(error: ValidationError) -> list[Any]:
    if error.error_count() > MOST_MISTAKES:  # formatting them would take too long
        raise InvalidRequest(f"{error.error_count()} values in the body are invalid or unknown")
    return error.errors(include_url=False, include_input=False)


def _remove(content: Any, place: tuple[Any, ...]) -> str:
    """Remove the field from the body and return its path, without the parts that only pydantic adds."""
    *within, name = place
    path: list[str | int] = []
    for part in within:
        inside = content[part] if isinstance(part, int) or part in content else None
        if isinstance(inside, dict | list):
            content = inside
            path.append(part)
    content.pop(name, None)
    return _joined([*path, name])


def _header(names: list[str]) -> str:
    """The names as a header value, shortened to a readable length."""
    shown = [quote(name[:_LONGEST_NAME], safe="[]:") for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        shown.append(f"and {len(names) - _MOST_NAMES} more")
    return ", ".join(shown)


def _explain(problems: list[Any], schema: type[BaseModel]) -> PaddockError:
    """The first problem as an error, with the field as `messages[0].role`. Unknown fields come last."""
    problem = min(problems, key=lambda problem: problem["type"] == "extra_forbidden")
    # Without the names that pydantic gives to the branches of a union.
    param = _joined([part for part in problem["loc"] if isinstance(part, int) or _is_name(part)])
    message = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "json_invalid" if problem["ctx"]["error"].startswith("recursion limit"):
            return too_deep()
        case "json_invalid":
            return InvalidJSON(f"the body is not valid JSON: {problem['ctx']['error']}")
        case "extra_forbidden":
            known = [name for name in schema.model_fields if name != param]
            return UnsupportedParameter(f"unknown parameter {param!r}{nearest(param, known)}", param=param)
        case "model_type" if not param:
            return InvalidRequest("the body must be a JSON object")
        case _ if not param:
            return InvalidRequest(message)
        case _:
            return InvalidRequest(f"{param}: {message}", param=param)


def _is_name(part: str) -> bool:
    """Whether it can be the name of a field. Some of llama-server's names contain a dot."""
    return all(word.isidentifier() for word in part.split("."))


def _joined(location: list[str | int]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path

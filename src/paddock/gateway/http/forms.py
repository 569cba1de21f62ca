"""Forms (`multipart/form-data`) as bodies: read within the limit of bodies, with one file in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel

from paddock.errors import InvalidRequest
from paddock.gateway.http.bodies import parse_read, read_bytes
from paddock.gateway.http.multipart import MultipartParser, PartBegin, PartData, boundary_of

Body = TypeVar("Body", bound=BaseModel)

_MOST_PARTS = 64
_LONGEST_FIELD = 64 * 1024
_LONGEST_NAME = 80


@dataclass(slots=True)
class Form:
    """The texts of a form by name, and the bytes of its file."""

    fields: dict[str, list[str]]
    file: bytes | None

    def values(self) -> dict[str, str | list[str]]:
        """The fields as a JSON object has them: a list where the name says so (`include[]`) or comes twice."""
        return {
            name.removesuffix("[]"): texts if name.endswith("[]") or len(texts) > 1 else texts[0]
            for name, texts in self.fields.items()
        }


async def read_form(request: Request, schema: type[Body], *, limit: int, example: str) -> tuple[Body, bytes]:
    """The fields of a form as a body, and its file, the field `file`. `example` is part of the error for another body.

    The schema must take texts for numbers: a form has nothing else.
    """
    boundary = boundary_of(request.headers.get("content-type", ""), example)
    form = await asyncio.to_thread(parse_form, await read_bytes(request, limit), boundary)
    if form.file is None:
        raise InvalidRequest("the form has no field 'file'", param="file")
    return await parse_read(request, msgspec.json.encode(form.values()), schema), form.file


def parse_form(data: bytes, boundary: bytes) -> Form:
    """Raises `InvalidRequest` for a form that is broken, or has two files or too many fields."""
    parser = MultipartParser(boundary)
    fields: dict[str, list[bytearray]] = {}
    file: list[bytes] | None = None
    parts, current = 0, ""
    for event in parser.feed(data):
        if isinstance(event, PartBegin):
            parts, current = parts + 1, event.name
            if parts > _MOST_PARTS:
                raise InvalidRequest(f"the form has more than {_MOST_PARTS} fields")
            if current == "file":
                if file is not None:
                    raise InvalidRequest("the form has the field 'file' twice", param="file")
                file = []
            else:
                fields.setdefault(current, []).append(bytearray())
        elif isinstance(event, PartData):
            if current == "file":
                assert file is not None, "begun"
                file.append(event.data)
            elif len(fields[current][-1]) + len(event.data) > _LONGEST_FIELD:
                name = current[:_LONGEST_NAME]
                raise InvalidRequest(f"{name}: the value has more than {_LONGEST_FIELD} bytes", param=name)
            else:
                fields[current][-1] += event.data
    if not parser.is_complete:
        raise InvalidRequest("the form is not complete: its last boundary is missing")
    return Form(
        {name: [_text(name, value) for value in values] for name, values in fields.items()},
        None if file is None else b"".join(file),
    )


def _text(name: str, value: bytearray) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        name = name[:_LONGEST_NAME]
        raise InvalidRequest(f"{name}: the value is not valid UTF-8", param=name) from None

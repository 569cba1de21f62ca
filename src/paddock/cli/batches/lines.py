"""Input of `paddock batch`: lines of OpenAI's batch format, or records and a prompt for each."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paddock.cli.batches.records import PARQUET, BadInput, objects, records

ENDPOINT = "/v1/chat/completions"
ROW = "row-{}"
"""The `custom_id` of a record, with its number from 1."""
_LONGEST_SHOWN = 80


class Prompt:
    """Makes a chat request of a record. `{name}` in a template is a column of the record, `{{` is a brace."""

    def __init__(self, template: str, *, system: str = "", body: Mapping[str, Any] | None = None) -> None:
        """`body` has the other fields of the request. Raises `BadInput`."""
        self._user, self._system = _parsed(template, "--prompt"), _parsed(system, "--system")
        self._body = dict(body or {})

    def request(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `BadInput` if a column is missing."""
        messages = [{"role": "user", "content": _filled(self._user, record)}]
        if self._system:
            messages.insert(0, {"role": "system", "content": _filled(self._system, record)})
        return self._body | {"messages": messages}


def batch_lines(path: Path, prompt: Prompt | None, model: str | None) -> Iterator[bytes]:
    """The lines to upload, each with a line feed. With a `model`, every request is for it. Raises `BadInput`."""
    if prompt is not None:
        for number, record in enumerate(records(path), 1):
            try:
                body = prompt.request(record)
            except BadInput as error:
                raise BadInput(f"record {number}: {error}") from None
            yield _line(
                {"custom_id": ROW.format(number), "method": "POST", "url": ENDPOINT, "body": _for_model(body, model)}
            )
        return
    for number, value in objects(path):
        if model is not None:
            request = value.get("body")
            if not isinstance(request, dict):
                raise BadInput(f"line {number}: body: an object is required")
            value["body"] = _for_model(request, model)
        yield _line(value)


def endpoint_of(path: Path, prompt: Prompt | None) -> str:
    """The `url` of the first line; the server refuses lines with another one. Raises `BadInput`."""
    if prompt is not None:
        return ENDPOINT
    if path.suffix.lower() == PARQUET:
        raise BadInput("a Parquet file has records: use --prompt")
    number, first = next(objects(path), (1, None))
    if first is None:
        raise BadInput(f"{path.name} has no lines")
    url = first.get("url")
    if not isinstance(url, str):
        columns = ", ".join(list(first)[:8])
        raise BadInput(f"line {number}: url: a text is required. For records ({columns}) use --prompt")
    return url


def settings(given: Iterable[str]) -> dict[str, Any]:
    """`NAME=VALUE` as fields of a request. A value that is JSON is read as such. Raises `BadInput`."""
    fields: dict[str, Any] = {}
    for setting in given:
        name, sign, value = setting.partition("=")
        if not sign or not name:
            raise BadInput(f"--set {setting}: NAME=VALUE is required")
        try:
            fields[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            fields[name] = value
    return fields


def _for_model(body: dict[str, Any], model: str | None) -> dict[str, Any]:
    return body if model is None else {"model": model} | body | {"model": model}


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _parsed(template: str, option: str) -> Sequence[tuple[str, str | None]]:
    """Texts, each with the column that follows."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None
    for _, name, format, conversion in parts:
        if name == "" or format or conversion:
            raise BadInput(f"{option}: {{NAME}} is a column, and {{{{ and }}}} are braces")
    return [(text, name) for text, name, _, _ in parts]


def _filled(template: Sequence[tuple[str, str | None]], record: Mapping[str, Any]) -> str:
    found = []
    for text, name in template:
        found.append(text)
        if name is None:
            continue
        if name not in record:
            raise BadInput(f"there is no column {name[:_LONGEST_SHOWN]!r}; there are {', '.join(record)}")
        value = record[name]
        found.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return "".join(found)

"""The messages of MCP, as values: JSON-RPC, server-sent events, tools and results. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

PROTOCOL: Final = "2025-06-18"
"""The version that is requested."""
UNDERSTOOD: Final = frozenset({"2024-11-05", "2025-03-26", PROTOCOL, "2025-11-25"})
_LONGEST_NAME: Final = 64
"""Of a function, at OpenAI and so at most clients."""
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class BadMessage(Exception):
    """What a server sent is not what the protocol says."""


class RemoteError(Exception):
    """A server answered a request with a JSON-RPC error."""


@dataclass(frozen=True, slots=True)
class FoundTool:
    name: str
    description: str
    schema: Mapping[str, Any]
    """The JSON schema of its arguments."""


@dataclass(frozen=True, slots=True)
class CallResult:
    text: str
    is_error: bool


class _Tool(msgspec.Struct, rename="camel"):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class _Tools(msgspec.Struct, rename="camel"):
    tools: list[_Tool]
    next_cursor: str | None = None


def request(number: int, method: str, params: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


def reply_to(message: Mapping[str, Any]) -> bytes:
    """The reply to a request of the server: to a ping, as no other ability was declared."""
    if message["method"] == "ping":
        return msgspec.json.encode({"jsonrpc": "2.0", "id": message["id"], "result": {}})
    error = {"code": -32601, "message": "not supported by this client"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": message["id"], "error": error})


def decode(data: bytes | str) -> list[Mapping[str, Any]]:
    """The messages of a body or an event: one, or a batch. Raises `BadMessage`."""
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadMessage("invalid JSON") from None
    messages = content if isinstance(content, list) else [content]
    if not all(isinstance(message, dict) for message in messages):
        raise BadMessage("a message that is no object")
    return messages


def is_request(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("method"), str) and message.get("id") is not None


def result_in(messages: Iterable[Mapping[str, Any]], number: int) -> Mapping[str, Any] | None:
    """The result of the request with this number, if it is there. Raises `RemoteError` for an error."""
    for message in messages:
        if "method" in message or message.get("id") != number:
            continue
        if (error := message.get("error")) is not None:
            text = error.get("message") if isinstance(error, dict) else None
            raise RemoteError(str(text or "unknown error"))
        result = message.get("result")
        if not isinstance(result, dict):
            raise BadMessage("a response without a result")
        return result
    return None


class EventReader:
    """Bytes of an event stream → the data of each event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that these bytes complete."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []


def tools_in(result: Mapping[str, Any]) -> tuple[list[FoundTool], str | None]:
    """The tools of one page, and the cursor of the next page. Raises `BadMessage`."""
    try:
        page = msgspec.convert(result, _Tools)
    except msgspec.ValidationError as error:
        raise BadMessage(f"a list of tools that cannot be read: {error}") from None
    return [FoundTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools], page.next_cursor


def result_of(result: Mapping[str, Any]) -> CallResult:
    """The result of a call as a text for a model. Raises `BadMessage`."""
    blocks = result.get("content", [])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise BadMessage("a result whose content is no list of objects")
    texts = [_text_of(block) for block in blocks]
    if not texts and (structured := result.get("structuredContent")) is not None:
        texts = [msgspec.json.encode(structured).decode()]
    return CallResult("\n".join(texts), result.get("isError") is True)


def _text_of(block: Mapping[str, Any]) -> str:
    """One block of content. What is no text is named."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource" and isinstance(resource := block.get("resource"), dict):
        return str(resource["text"]) if "text" in resource else _named("resource", resource)
    if kind == "resource_link":
        return f"{block.get('name') or 'resource'}: {block.get('uri', '')}"
    return _named(str(kind), block)


def _named(kind: str, block: Mapping[str, Any]) -> str:
    return f"[{kind}{f', {mime}' if (mime := block.get('mimeType')) else ''}: not shown]"


def function_names(server: str, tools: Iterable[str]) -> list[str]:
    """A name for the function of each tool of a server: letters, digits, _ and - only, and all different."""
    names: list[str] = []
    for tool in tools:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")[:_LONGEST_NAME]
        name, number = plain, 2
        while name in names:
            ending = f"_{number}"
            name, number = plain[: _LONGEST_NAME - len(ending)] + ending, number + 1
        names.append(name)
    return names

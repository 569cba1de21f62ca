"""Images and audio in conversations. Their data goes to the worker as the client sent it; nothing is decoded here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paddock.errors import InvalidRequest
from paddock.types import MediaFile, MediaKind

_FILE = "file"


def media_part(kind: MediaKind, data: str | bytes, param: str) -> dict[str, Any]:
    """A part of a message that stands for a file, given as base64 or as it is. `take_media` replaces the file."""
    file = MediaFile(kind, data, param) if isinstance(data, str) else MediaFile(kind, "", param, data)
    return {"type": "media", "text": "", _FILE: file}


def data_of_url(url: str, param: str) -> str:
    """The base64 data of a `data:` URL. Raises `InvalidRequest` for any other URL."""
    scheme, separator, rest = url.partition(":")
    if separator and scheme.lower() == "data":
        kind, comma, data = rest.partition(",")
        if comma and kind.lower().endswith(";base64"):
            return data
        raise InvalidRequest(f"{param}: a data: URL must be data:TYPE;base64,DATA", param=param)
    if scheme.lower() in ("http", "https", "file") and separator:
        reason = f"this server does not read {scheme.lower()}: URLs; send the file itself as data:TYPE;base64,DATA"
        raise InvalidRequest(f"{param}: {reason}", param=param)
    raise InvalidRequest(f"{param}: expected a data: URL", param=param)


def content_of(parts: Iterable[Any], at: str) -> str | list[dict[str, Any]]:
    """The content of a message as chat templates expect it: one text, unless there are files. `at` is the path of the
    parts in the request. A part has a `text`, or makes its own with `rendered`.
    """
    found = [
        part.rendered(f"{at}[{index}]") if hasattr(part, "rendered") else {"type": "text", "text": part.text}
        for index, part in enumerate(parts)
    ]
    if any(_FILE in part for part in found):
        return found
    return "\n".join(part["text"] for part in found)


def take_media(messages: Iterable[dict[str, Any]]) -> tuple[MediaFile, ...]:
    """Take the files out of the parts of messages, in their order."""
    return tuple(
        part.pop(_FILE)
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if _FILE in part
    )

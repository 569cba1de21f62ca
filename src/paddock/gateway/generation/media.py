"""Images and audio in conversations. Their data goes to the worker as the client sent it; nothing is decoded here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from paddock.errors import InvalidRequest
from paddock.types import MediaFile, MediaKind, MediaPrompt

_FILE = "file"
_LONGEST_URL: Final = 4096
FETCHED: Final = ("http", "https", "file")
"""Schemes of URLs that a server may be allowed to fetch."""
MEDIA_MARKER: Final = os.environ.get("LLAMA_MEDIA_MARKER") or "<__media__>"
"""Stands for a file in a prompt of llama-server's API. In conversations it is text like any other."""


def media_part(kind: MediaKind, data: str | bytes, param: str) -> dict[str, Any]:
    """A part of a message that stands for a file, given as base64 or as it is. `take_media` replaces the file."""
    file = MediaFile(kind, data, param) if isinstance(data, str) else MediaFile(kind, "", param, data)
    return {"type": "media", "text": "", _FILE: file}


def url_part(kind: MediaKind, url: str, param: str) -> dict[str, Any]:
    """The same for a URL. The file of one that is no `data:` URL is fetched later (`media_sources.py`)."""
    scheme, separator, rest = url.partition(":")
    if separator and scheme.lower() == "data":
        described, comma, data = rest.partition(",")
        if comma and described.lower().endswith(";base64"):
            return media_part(kind, data, param)
        raise InvalidRequest(f"{param}: a data: URL must be data:TYPE;base64,DATA", param=param)
    if scheme.lower() in FETCHED and rest.startswith("//"):
        if len(url) > _LONGEST_URL:
            raise InvalidRequest(f"{param}: the URL is longer than {_LONGEST_URL} characters", param=param)
        return {"type": "media", "text": "", _FILE: MediaFile(kind, "", param, url=url)}
    raise InvalidRequest(f"{param}: expected a data: URL", param=param)


def media_prompt(text: Any, files: Any, param: str) -> MediaPrompt:
    """llama-server's `prompt_string` and `multimodal_data`. `param` is the field that has them. Raises
    `InvalidRequest`.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{param}.prompt_string: it must be a text, with multimodal_data", param=param)
    at = f"{param}.multimodal_data"
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise InvalidRequest(f"{at}: it must be a list of base64 texts", param=at)
    texts = text.split(MEDIA_MARKER)
    if len(texts) != len(files) + 1:
        raise InvalidRequest(
            f"{param}.prompt_string: it has the marker {MEDIA_MARKER} {len(texts) - 1} times, and multimodal_data has "
            f"{len(files)} files",
            param=f"{param}.prompt_string",
        )
    return MediaPrompt(texts, tuple(MediaFile("any", file, f"{at}[{index}]") for index, file in enumerate(files)))


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

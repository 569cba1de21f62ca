"""An Ollama store: manifests that name blobs. It is read, never written, and no blob is copied.

```text
manifests/HOST/OWNER/MODEL/TAG    JSON: layers with a media type and the digest of a blob
blobs/sha256-DIGEST               GGUF files, templates, parameters, system prompts, …
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from paddock.gateway.dialects.ollama import names

_KIND: Final = "application/vnd.ollama.image."
_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_MOST_MANIFEST: Final = 1 << 20
_MOST_TEXT: Final = 4 << 20
_DEPTH: Final = 4
"""Folders of a manifest: host, owner, model, tag."""


class BrokenStore(ValueError):
    """A manifest or one of its blobs cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of a store."""

    name: str
    """As Ollama shows it, without what it adds by itself."""
    file: Path
    """Its GGUF file."""
    projectors: tuple[Path, ...] = ()
    adapters: tuple[Path, ...] = ()
    template: str = ""
    """A Go template."""
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[dict[str, Any], ...] = ()
    license: str = ""


class _Layer(msgspec.Struct, rename="camel"):
    media_type: str = ""
    digest: str = ""


class _Manifest(msgspec.Struct):
    layers: list[_Layer] | None = None


def name_of(parts: tuple[str, ...]) -> str:
    """The name of the manifest with this path."""
    *place, model, tag = parts
    path = "/".join([*place, model])
    return names.canonical(f"{path}:{tag}")


def manifests(store: Path) -> Iterator[tuple[str, Path]]:
    """The names of all models, and their manifests."""
    top = store / "manifests"
    for path in sorted(top.glob("/".join("*" * _DEPTH))):
        parts = path.relative_to(top).parts
        if path.is_file() and not any(part.startswith(".") for part in parts):
            yield name_of(parts), path


def read_model(store: Path, name: str, manifest: bytes) -> StoredModel:
    """The model of a manifest. Raises `BrokenStore`."""
    if len(manifest) > _MOST_MANIFEST:
        raise BrokenStore(f"its manifest has {len(manifest)} bytes")
    try:
        layers = msgspec.json.decode(manifest, type=_Manifest).layers or []
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BrokenStore(f"its manifest is not valid: {error}") from None
    found: dict[str, list[Path]] = {}
    for layer in layers:
        if layer.media_type.startswith(_KIND):
            found.setdefault(layer.media_type.removeprefix(_KIND), []).append(_blob(store, layer.digest))
    files = found.get("model", [])
    if len(files) != 1:
        reason = "it has no GGUF file" if not files else f"it has {len(files)} GGUF files"
        raise BrokenStore(
            f"{reason}; {'it runs in the cloud or has tensors of its own' if not files else 'one is needed'}"
        )
    return StoredModel(
        name,
        files[0],
        tuple(found.get("projector", [])),
        tuple(found.get("adapter", [])),
        "\n".join(map(_text, found.get("template", []) or found.get("prompt", []))),
        "\n".join(map(_text, found.get("system", []))),
        _object(found.get("params", [])),
        tuple(_messages(found.get("messages", []))),
        "\n".join(map(_text, found.get("license", []))),
    )


def _blob(store: Path, digest: str) -> Path:
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise BrokenStore(f"its manifest has a digest that is none: {digest[:80]!r}")
    path = store / "blobs" / f"sha256-{match[1].lower()}"
    if not path.is_file():
        raise BrokenStore(f"the blob {path.name} is missing")
    return path


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_MOST_TEXT + 1)
    if len(data) > _MOST_TEXT:
        raise BrokenStore(f"the blob {path.name} has more than {_MOST_TEXT} bytes")
    return data.decode("utf-8", "replace")


def _json(path: Path) -> Any:
    try:
        return msgspec.json.decode(_text(path))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BrokenStore(f"the blob {path.name} is not valid JSON: {error}") from None


def _object(paths: list[Path]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path in paths:
        if not isinstance(found := _json(path), dict):
            raise BrokenStore(f"the parameters in {path.name} are not an object")
        merged |= found
    return merged


def _messages(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        found = _json(path)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise BrokenStore(f"the messages in {path.name} are not a list of objects")
        yield from found

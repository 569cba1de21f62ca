"""The whole configuration."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from paddock.config.batches import BatchSettings
from paddock.config.cluster import ClusterSettings
from paddock.config.fields import Section
from paddock.config.models import ModelManagerSettings
from paddock.config.responses import ResponseSettings
from paddock.config.server import ServerSettings


class Settings(Section):
    """The whole configuration file; each section is one JSON object of it."""

    server: ServerSettings = ServerSettings()
    """The HTTP server: address, keys, limits and log."""
    model_manager: ModelManagerSettings = ModelManagerSettings()
    """Which models there are, how they are loaded, and how they share the machine."""
    batches: BatchSettings = BatchSettings()
    """Files and batches: when they run, and how much of them a key may have."""
    responses: ResponseSettings = ResponseSettings()
    """Stored responses and conversations, which clients of the responses API continue by their ids."""
    cluster: ClusterSettings = ClusterSettings()
    """How `paddock cluster` deploys the server on Ray."""


def known_keys() -> list[str]:
    return [
        f"{section}.{name}"
        for section, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for name in field.annotation.model_fields
    ]


def container_of(key: str) -> Literal["list", "object"] | None:
    origin = get_origin(_annotation(key))
    return "list" if origin is list else "object" if origin is dict else None


def scalar_types(key: str) -> frozenset[type]:
    """The plain types of a setting: {int, NoneType} for `int | None`."""
    return frozenset(_leaves(_annotation(key)))


def _annotation(key: str) -> Any:
    section, _, name = key.partition(".")
    annotation = Settings.model_fields[section].annotation
    assert annotation is not None, "every section is annotated"
    return annotation.model_fields[name].annotation


def _leaves(annotation: Any) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    if get_origin(annotation) is Literal:
        return []
    return [leaf for inner in get_args(annotation) for leaf in _leaves(inner)]

"""The whole configuration."""

from __future__ import annotations

from typing import Literal, get_origin

from pydantic import BaseModel

from paddock.config.cluster import ClusterSettings
from paddock.config.fields import Section
from paddock.config.models import ModelManagerSettings
from paddock.config.server import ServerSettings


class Settings(Section):
    """The whole configuration file; each section is one JSON object of it."""

    server: ServerSettings = ServerSettings()
    model_manager: ModelManagerSettings = ModelManagerSettings()
    cluster: ClusterSettings = ClusterSettings()


def known_keys() -> list[str]:
    return [
        f"{section}.{name}"
        for section, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for name in field.annotation.model_fields
    ]


def container_of(key: str) -> Literal["list", "object"] | None:
    section, _, name = key.partition(".")
    annotation = Settings.model_fields[section].annotation
    assert annotation is not None, "every section is annotated"
    origin = get_origin(annotation.model_fields[name].annotation)
    return "list" if origin is list else "object" if origin is dict else None

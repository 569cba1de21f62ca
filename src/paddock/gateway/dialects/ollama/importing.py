"""Serves the models of an Ollama store in place: entries of the configuration, and names of Ollama's API."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from paddock.fleet.catalogue.gguf import BrokenGGUF
from paddock.fleet.catalogue.headers import read_headers
from paddock.fleet.catalogue.projectors import media_kinds
from paddock.gateway.dialects.ollama.created import Created
from paddock.gateway.dialects.ollama.options import Options
from paddock.gateway.dialects.ollama.requests import PLAIN_TEMPLATE, Message
from paddock.gateway.dialects.ollama.store import BrokenStore, StoredModel, manifests, read_model
from paddock.gateway.dialects.ollama.templates import family_of

# Options for loading, and the settings of a model that they are.
_SETTINGS: Final = {"num_ctx": "n_ctx", "num_gpu": "n_gpu_layers", "num_thread": "n_threads", "num_batch": "n_batch"}
_LEAST: Final = {"n_ctx": 0, "n_gpu_layers": -1, "n_threads": 1, "n_batch": 1}
_NO_DEFAULT: Final = frozenset({"draft_n_max"})


@dataclass(slots=True)
class Imported:
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Entries of `model_manager.models`."""
    created: dict[str, Created] = field(default_factory=dict)
    """System prompts, messages and parameters, for Ollama's API."""
    notes: list[str] = field(default_factory=list)
    """What could not be used, by model."""


def default_store() -> Path:
    """Where Ollama keeps its models."""
    given = os.environ.get("OLLAMA_MODELS")
    return Path(given).expanduser() if given else Path.home() / ".ollama" / "models"


def import_store(store: Path) -> Imported:
    """All models of a store. One that cannot be used is a note."""
    imported = Imported()
    store = store.absolute()
    for name, path in manifests(store):
        try:
            model = read_model(store, name, path.read_bytes())
            header = read_headers([model.file])
        except (BrokenStore, BrokenGGUF) as error:
            imported.notes.append(f"{name} is left out: {error}")
            continue
        except OSError as error:
            imported.notes.append(f"{name} is left out: {error.strerror or error}")
            continue

        def say(text: str, name: str = name) -> None:
            imported.notes.append(f"{name}: {text}")

        has_template = "tokenizer.chat_template" in header.metadata
        imported.models[name] = _entry(model, say, has_template=has_template)
        parameters = _options(model, say)
        if model.system or model.messages or parameters.given:
            imported.created[name] = Created(
                base=name,
                system=model.system,
                parameters=parameters.given,
                messages=_valid_messages(model, say),
                license=model.license,
                modified=time.time(),
            )
    return imported


def _entry(model: StoredModel, say: Callable[[str], None], *, has_template: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": str(model.file)}
    for option, setting in _SETTINGS.items():
        value = model.parameters.get(option)
        if isinstance(value, int) and not isinstance(value, bool) and value >= _LEAST[setting]:
            entry[setting] = value
    if model.adapters:
        entry["lora"] = [str(path) for path in model.adapters]
    entry |= _projector(model, say)
    entry |= _template(model, say, has_template=has_template)
    options = _options(model, lambda text: None)
    defaults = {name: value for name, value in options.fields().items() if name not in _NO_DEFAULT}
    if defaults:
        entry["defaults"] = msgspec.to_builtins(defaults)
    return entry


def _projector(model: StoredModel, say: Callable[[str], None]) -> dict[str, Any]:
    """The file with which it reads images. A model uses one."""
    usable: list[Path] = []
    for path in model.projectors:
        try:
            header = read_headers([path])
        except (BrokenGGUF, OSError) as error:
            say(f"its projector for images is not used: {error}")
            continue
        if media_kinds(header):
            usable.append(path)
        else:
            say("its projector for images is not used: the file is no projector")
    if len(usable) > 1:
        say(f"it has {len(usable)} projectors; the first is used")
    return {"mmproj": str(usable[0])} if usable else {}


def _template(model: StoredModel, say: Callable[[str], None], *, has_template: bool) -> dict[str, Any]:
    """Go templates are not run. The file's own template is used, or else llama.cpp's of the same family."""
    if not model.template or model.template.strip() == PLAIN_TEMPLATE:
        return {}
    if has_template:
        say("its Go template is not used, but the chat template in its file")
        return {}
    if (family := family_of(model.template)) is not None:
        say(f"its Go template is not used, but llama.cpp's template {family!r}, which writes the same marks")
        return {"chat_template": family}
    say("its Go template is not used, and its file has no chat template: set chat_template for it")
    return {}


def _options(model: StoredModel, say: Callable[[str], None]) -> Options:
    """Its parameters, without those that a request could not have."""
    valid = Options()
    for name, value in model.parameters.items():
        try:
            one = Options.model_validate_json(msgspec.json.encode({name: value}))
        except (ValidationError, ValueError):
            say(f"its parameter {name} is not used: {msgspec.json.encode(value)[:80].decode('utf-8', 'replace')}")
            continue
        valid = one.over(valid)
    return valid


def _valid_messages(model: StoredModel, say: Callable[[str], None]) -> list[dict[str, Any]]:
    found = []
    for message in model.messages:
        try:
            one = Message.model_validate_json(msgspec.json.encode(message))
        except (ValidationError, ValueError):
            say("one of its messages is not used")
            continue
        found.append(one.model_dump(exclude_none=True))
    return found

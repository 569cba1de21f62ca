"""The defaults of a model's requests: values for fields that a body leaves out.

`defaults` of the settings come first, then what the model's file says (`general.sampling.*`), as in llama-server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import structlog
from pydantic import Field, ValidationError

from paddock.config import ModelManagerSettings
from paddock.errors import PaddockError, SettingsError
from paddock.fleet import Model
from paddock.gateway.generation.fields import LARGEST, GenerationFields
from paddock.gateway.generation.reply_fields import ReplyFields

_log = structlog.get_logger(__name__)

_Body = TypeVar("_Body", bound=GenerationFields)

_LIMITS = ("n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens")
"""The names of one field in different dialects."""
_CONSTRAINTS = frozenset({"grammar", "json_schema", "regex"})
_NO_DEFAULT = frozenset({"model", "stream", "job_id", "id_slot", "lora", "normalize", "receipt"})


class RequestDefaults(GenerationFields, ReplyFields):
    """The fields that can have a default. Each is validated as in a request."""

    n_predict: int | None = Field(None, ge=-1, le=LARGEST)
    max_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    """Another name for `n_predict`."""
    chat_template_kwargs: dict[str, Any] | None = None
    embd_normalize: int | None = Field(None, ge=-1, le=64)
    spm_infill: bool | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; None: no default."""
        given = self.n_predict if self.n_predict is not None else self.max_tokens
        return None if given == -1 else given


def defaults_of(model: Model) -> RequestDefaults:
    """Reads the header of the model's file, which is slow if it has not been read before."""
    return _merged(msgspec.json.encode(model.sampling_defaults()), msgspec.json.encode(model.settings.defaults))


def check_defaults(manager: ModelManagerSettings) -> None:
    """Raises `SettingsError` for a default that no request could have."""
    of_models = {f"model_manager.models.{name}.defaults": own.defaults for name, own in manager.models.items()}
    for key, defaults in {"model_manager.defaults": manager.defaults, **of_models}.items():
        try:
            _parsed(msgspec.json.encode(defaults))
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            raise SettingsError(f"{key}.{field}: {problem['msg']} (got {problem['input']!r})") from None
        except PaddockError as error:
            raise SettingsError(f"{key}: {error.message}") from None


async def with_defaults(body: _Body, model: Model, *, is_loaded: bool) -> _Body:
    """The body with the model's defaults for the fields that it leaves out. A load has read the header already."""
    return body_with_defaults(body, model) if is_loaded else await asyncio.to_thread(body_with_defaults, body, model)


def body_with_defaults(body: _Body, model: Model) -> _Body:
    """The same. Reads the header of the model's file, which is slow if it has not been read before."""
    defaults = defaults_of(model)
    return body.model_copy(update=_missing(body, defaults)) if defaults.model_fields_set else body


def _missing(body: GenerationFields, defaults: RequestDefaults) -> Mapping[str, Any]:
    fields = type(body).model_fields
    given = {name: getattr(defaults, name) for name in defaults.model_fields_set if name in fields}
    found = {name: value for name, value in given.items() if name not in _LIMITS and getattr(body, name) is None}
    if body.constraints() or getattr(body, "tools", None):
        found = {name: value for name, value in found.items() if name not in _CONSTRAINTS}
    limits = [name for name in _LIMITS if name in fields]
    if defaults.limit is not None and limits and all(getattr(body, name) is None for name in limits):
        found[limits[0]] = defaults.limit
    if defaults.chat_template_kwargs and (own := getattr(body, "chat_template_kwargs", None)):
        found["chat_template_kwargs"] = defaults.chat_template_kwargs | own
    return found


@lru_cache(maxsize=256)
def _merged(of_file: bytes, of_settings: bytes) -> RequestDefaults:
    return _parsed(msgspec.json.encode(_valid(msgspec.json.decode(of_file)) | msgspec.json.decode(of_settings)))


def _valid(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a file that a request could have. A file must not make every request fail."""
    valid = {}
    for name, value in fields.items():
        try:
            RequestDefaults.model_validate({name: value})
            valid[name] = value
        except ValidationError:
            _log.warning("the model's file has a sampling default that is not possible", field=name, value=value)
    return valid


@lru_cache(maxsize=256)
def _parsed(encoded: bytes) -> RequestDefaults:
    given = msgspec.json.decode(encoded)
    if refused := sorted(_NO_DEFAULT & given.keys()):
        raise SettingsError(f"{refused[0]!r} cannot have a default")
    return RequestDefaults.model_validate(given)

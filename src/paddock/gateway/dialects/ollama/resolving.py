"""Which model a request means, and for how long it asks to keep it loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from pydantic import ValidationError

from paddock.errors import InvalidRequest, ModelNotFound, PermissionDenied
from paddock.fleet import Fleet, Model
from paddock.gateway.auth.caller import caller_of, model_for, model_to_run
from paddock.gateway.dialects.ollama import names
from paddock.gateway.dialects.ollama.created import Created, CreatedModels
from paddock.gateway.dialects.ollama.durations import FOREVER
from paddock.gateway.dialects.ollama.options import Options, stored_options
from paddock.gateway.dialects.ollama.requests import Message
from paddock.gateway.http.disconnect import until_disconnect
from paddock.gateway.http.scope import IGNORED
from paddock.types import Tokenize

_AT_ONCE: Final = 0.001
"""Idle seconds after which a model is unloaded that shall not stay; 0 means for ever in the settings."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a name means."""

    asked: str
    """As the request has it; answers repeat it."""
    model: Model
    created: Created | None = None

    def options(self, given: Options | None) -> Options | None:
        """The parameters of the name, and over them those of a request."""
        try:
            own = stored_options(self.created.parameters) if self.created is not None else None
        except ValidationError as error:
            problem = error.errors()[0]
            raise InvalidRequest(f"the parameter {problem['loc']} of {self.asked!r}: {problem['msg']}") from None
        return own if given is None else given.over(own)

    @property
    def messages(self) -> Sequence[Message]:
        found = self.created.messages if self.created is not None else []
        return [Message.model_validate(message, strict=False) for message in found]


class Resolver:
    def __init__(self, fleet: Fleet, created: CreatedModels) -> None:
        self._fleet = fleet
        self.created = created

    def find(self, request: Request, name: str | None) -> Named:
        """Names made over the API come first, then models of the catalogue. Raises `ModelNotFound`, or
        `PermissionDenied` if the caller may not use the model.
        """
        catalogue = self._fleet.catalogue
        made = self.created.all()
        if name and (own := names.match(name, made)) is not None:
            created = made[own]
            base = self._of_catalogue(created.base)
            if base is None:
                raise ModelNotFound(f"{name!r} is made of {created.base!r}, which is not served", param="model")
            return Named(name, model_for(request, self._fleet, base), created)
        found = self._of_catalogue(name) if name else None
        model = model_for(request, self._fleet, found or name or None)
        return Named(name or names.tagged(catalogue.shown_name(model, None)), model)

    def _of_catalogue(self, name: str) -> str | None:
        models = {own: model.name for model in self._fleet.catalogue for own in (*model.aliases, model.name)}
        found = names.match(name, models)
        return None if found is None else models[found]


def keep_alive_of(request: Request, model: Model, seconds: float | None) -> float | None:
    """How long the model stays loaded after the request, as `Fleet.stay_loaded` counts; None: as before. It concerns
    all users of the model, so that only admins may set it; for other keys it has no effect, as a header says.
    """
    if seconds is None or model.clustered:
        return None
    if not caller_of(request).admin:
        before = request.scope.get(IGNORED)
        request.scope[IGNORED] = f"{before}, keep_alive" if before else "keep_alive"
        return None
    return 0.0 if seconds == FOREVER else max(seconds, _AT_ONCE)


async def load_or_unload(request: Request, fleet: Fleet, model: Model, seconds: float | None) -> str:
    """What a request without a prompt asks for. Returns Ollama's word for it."""
    if seconds == 0:
        if not caller_of(request).admin:
            raise PermissionDenied("unloading a model (keep_alive 0) requires an admin API key", param="keep_alive")
        await fleet.unload(model)
        return "unload"
    await load(request, fleet, model)
    if (stay := keep_alive_of(request, model, seconds)) is not None:
        fleet.stay_loaded(model, stay)
    return "load"


async def load(request: Request, fleet: Fleet, model: Model) -> float:
    """Load a model as any request does. Returns the seconds that it took."""
    began = time.monotonic()
    model_to_run(request, fleet, model.name)
    if not fleet.is_unloaded(model):
        return 0.0
    question = Tokenize(["x"], False, False, False, caller_of(request).origin)
    await until_disconnect(request, fleet.ask(model, question))
    return time.monotonic() - began

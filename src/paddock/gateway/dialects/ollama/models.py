"""What models there are: `/api/tags`, `/api/show`, `/api/ps` and `/api/version`. Loads nothing."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock import __version__
from paddock.errors import InvalidRequest
from paddock.fleet import Model
from paddock.fleet.catalogue.gguf import BrokenGGUF, Header
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.ollama import schema
from paddock.gateway.dialects.ollama.created import Created
from paddock.gateway.dialects.ollama.durations import time_of
from paddock.gateway.dialects.ollama.names import match, tagged
from paddock.gateway.dialects.ollama.resolving import Resolver
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import BodyFields
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

_BLOB: Final = re.compile(r"sha256-([0-9a-f]{64})")
_OLLAMA: Final = "0.12.11"
_NEVER: Final = 4102444800.0
"""The year 2100: when a model expires that stays loaded."""
_TEMPLATE: Final = "tokenizer.chat_template"


class ShowRequest(BodyFields):
    without_effect = frozenset({"system", "template", "options"})

    model: str | None = None
    name: str | None = None
    """The older field."""
    verbose: bool | None = None


_THINKING: Final = ("enable_thinking", "<think>", "reasoning_content", "reasoning_effort", ".thinking")
"""Words of templates with reasoning."""


def model_routes(services: Services, resolver: Resolver) -> APIRouter:
    fleet = services.fleet
    router = APIRouter(tags=["ollama"])
    said: dict[str, Any] = {"error": schema.Failure, "prefix": "Ollama"}

    @router.head("/api/tags", include_in_schema=False)
    @router.get("/api/tags", **describe(schema.ModelList, **said))
    async def ollama_tags(request: Request) -> Response:
        """Every model that the caller may use, and the names that were made of them."""
        caller, made = caller_of(request), resolver.created.all()
        models = {model.name: model for model in fleet.catalogue if caller.may_use(model)}
        shown: list[tuple[str, Model, Created | None]] = [
            *((name, model, made.get(name)) for name, model in models.items()),
            *(
                (name, models[base], created)
                for name, created in made.items()
                if name not in models and (base := match(created.base, models)) is not None
            ),
        ]
        listed = await asyncio.to_thread(lambda: [_listed(*one) for one in shown])
        return JSON(schema.ModelList(listed))

    @router.post("/api/show", **describe(schema.ShownModel, body=ShowRequest, **said))
    async def ollama_show(request: Request) -> Response:
        """What a model is and can do. `verbose` adds its tensors."""
        body = await read_body(request, ShowRequest, limit=services.settings.max_body_bytes)
        if not (body.model or body.name):
            raise InvalidRequest("model is required", param="model")
        named = resolver.find(request, body.model or body.name)
        loaded = fleet.info(named.model)
        template = loaded.chat_template if loaded is not None else ""
        shown = await asyncio.to_thread(_shown, named.model, named.created, template, verbose=bool(body.verbose))
        return JSON(shown)

    @router.get("/api/ps", **describe(schema.RunningModels, **said))
    async def ollama_ps(request: Request) -> Response:
        """The loaded models that the caller may use, and when they are unloaded if nobody uses them."""
        caller = caller_of(request)
        found = []
        for status in fleet.status():
            if status.state != "loaded" or not caller.may_use(status.model):
                continue
            stays = status.model.settings.pinned or not status.idle_timeout
            info, name = fleet.info(status.model), tagged(status.model.name)
            found.append(
                schema.RunningModel(
                    name=name,
                    model=name,
                    size=sum(status.needs.values()),
                    digest=_digest(status.model),
                    details=await asyncio.to_thread(_details, status.model),
                    expires_at=time_of(
                        _NEVER if stays else min(time.time() + status.idle_timeout - status.idle_for, _NEVER)
                    ),
                    size_vram=sum(size for device, size in status.needs.items() if device != "host"),
                    context_length=info.n_ctx if info is not None else 0,
                )
            )
        return JSON(schema.RunningModels(found))

    @router.head("/api/version", include_in_schema=False)
    @router.get("/api/version", **describe(schema.Version, **said))
    async def ollama_version() -> Response:
        """The version of Ollama whose routes these are, which programs compare with the one they need, and this
        server's own.
        """
        return JSON(schema.Version(_OLLAMA, __version__))

    return router


def _listed(name: str, model: Model, created: Created | None) -> schema.ListedModel:
    return schema.ListedModel(
        name=tagged(name),
        model=tagged(name),
        modified_at=time_of(created.modified if created is not None and created.modified else model.created),
        size=sum(file.size for file in model.files),
        digest=_digest(model, created),
        details=_details(model, created),
        capabilities=_capabilities(model, _header(model), created.template if created is not None else ""),
    )


def _header(model: Model) -> Header | None:
    if model.is_fake or model.is_remote:
        return None
    try:
        return model.header()
    except (BrokenGGUF, OSError):
        return None


def _digest(model: Model, created: Created | None = None) -> str:
    """Of an Ollama blob its own. Reading gigabytes for any other would take minutes."""
    own = _BLOB.fullmatch(PurePath(model.path).name)
    if own is not None and created is None:
        return own[1]
    parts = [(file.path, file.size, file.written) for file in model.files]
    return hashlib.sha256(msgspec.json.encode([model.name, parts, created])).hexdigest()


def _details(model: Model, created: Created | None = None) -> schema.ModelDetails:
    known = model.description()
    family = known.architecture or ""
    return schema.ModelDetails(
        parent_model=created.base if created is not None else "",
        family=family,
        families=[family] if family else [],
        parameter_size=parameter_size(known.n_params),
        quantization_level=known.quantization or "",
        context_length=known.n_ctx_train if known.n_ctx_train is not None else msgspec.UNSET,
        embedding_length=known.n_embd if known.n_embd is not None else msgspec.UNSET,
    )


def parameter_size(count: int | None) -> str:
    """As Ollama writes it: `134.52M`, `8.0B`."""
    if not count:
        return ""
    if count >= 10**9:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.2f}M" if count >= 10**6 else f"{count / 1e3:.2f}K" if count >= 1000 else str(count)


def _capabilities(model: Model, header: Header | None, template: str) -> list[str]:
    """By the words of its template and the tokens of its vocabulary."""
    if model.kind() == "embedding":
        return ["embedding"]
    metadata: Mapping[str, Any] = header.metadata if header is not None else {}
    template = template or model.options.chat_template or str(metadata.get(_TEMPLATE, ""))
    has = {
        "completion": True,
        "tools": "tools" in template,
        "vision": "image" in model.media(),
        "insert": any(f"tokenizer.ggml.{name}_token_id" in metadata for name in ("fim_pre", "prefix")),
        "thinking": any(word in template for word in _THINKING),
    }
    return [name for name, is_there in has.items() if is_there]


def lacks_thinking(model: Model, created: Created | None, template: str) -> bool:
    """Whether the template is known and has no reasoning. `template`: the request's, or else the loaded model's."""
    header = _header(model)
    template = (created.template if created is not None else "") or template
    return bool(header or template) and "thinking" not in _capabilities(model, header, template)


def _shown(model: Model, created: Created | None, loaded: str, *, verbose: bool) -> schema.ShownModel:
    header = _header(model)
    metadata = dict(header.metadata) if header is not None else {}
    own = str(metadata.pop(_TEMPLATE, ""))
    template = (created.template if created is not None else "") or loaded or model.options.chat_template or own
    info: dict[str, Any] = {"general.parameter_count": header.parameters if header is not None else 0, **metadata}
    if header is not None:
        info |= {key: list(header.arrays[key]) if verbose and key in header.arrays else None for key in header.lengths}
    parameters = created.parameters if created is not None else {}
    licenses = [str(metadata[key]) for key in ("general.license",) if key in metadata]
    return schema.ShownModel(
        license=(created.license if created is not None else "") or "\n".join(licenses),
        modelfile=_modelfile(model, created, template),
        parameters="\n".join(_parameter_lines(parameters)),
        template=template,
        system=created.system if created is not None else "",
        details=_details(model, created),
        messages=created.messages if created is not None else [],
        model_info=info,
        capabilities=_capabilities(model, header, template),
        modified_at=time_of(created.modified if created is not None and created.modified else model.created),
        tensors=[schema.ShownTensor(one.name, "", one.shape) for one in header.tensors]
        if verbose and header is not None
        else msgspec.UNSET,
    )


def _parameter_lines(parameters: Mapping[str, Any]) -> list[str]:
    return [
        f"{name:<30} {msgspec.json.encode(value).decode()}"
        for name, given in sorted(parameters.items())
        for value in (given if isinstance(given, list) else [given])
    ]


def _modelfile(model: Model, created: Created | None, template: str) -> str:
    """The text from which Ollama would make the same model. The template is Jinja, which Ollama does not run."""
    lines = [f"FROM {created.base if created is not None else model.path}"]
    lines += [f"# the chat template is Jinja\n# {line}" for line in template.splitlines()[:1]]
    if created is not None:
        lines += [f'SYSTEM """{created.system}"""'] if created.system else []
        lines += [f"PARAMETER {line}" for line in _parameter_lines(created.parameters)]
        lines += [f"MESSAGE {one.get('role')} {one.get('content', '')}" for one in created.messages]
    return "\n".join(lines) + "\n"

"""Names and files: `/api/create`, `/api/copy`, `/api/delete` and `/api/pull`. They require an admin key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import AfterValidator, BeforeValidator, Field

from paddock.errors import (
    FeatureDisabled,
    InvalidRequest,
    ModelNotFound,
    NotSupported,
)
from paddock.fleet.catalogue.hub import Source
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.ollama import names
from paddock.gateway.dialects.ollama.created import Created
from paddock.gateway.dialects.ollama.options import Options
from paddock.gateway.dialects.ollama.requests import Message, checked_template
from paddock.gateway.dialects.ollama.resolving import Resolver
from paddock.gateway.dialects.ollama.schema import Failure, Progress
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.disconnect import until_disconnect
from paddock.gateway.http.event_stream import EventStream
from paddock.gateway.http.fields import BodyFields, Unsupported
from paddock.gateway.http.framing import NDJSON
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.gateway.http.sizes import MOST_MESSAGES
from paddock.gateway.ops.downloads import hub_source

_encode = msgspec.json.Encoder().encode
_LONGEST_TEXT = 1 << 20


class _Named(BodyFields):
    model: str | None = None
    name: str | None = None
    """The older field."""
    stream: Annotated[bool, BeforeValidator(lambda given: True if given is None else given)] = True

    @property
    def asked(self) -> str:
        if not (name := self.model or self.name):
            raise InvalidRequest("model is required", param="model")
        return name


class CreateRequest(_Named):
    unsupported: ClassVar[Unsupported] = {
        "files": ({},),
        "draft_files": ({},),
        "adapters": ({},),
        "quantize": ("",),
        "quantization": ("",),
        "draft_quantize": ("",),
        "modelfile": ("",),
        "path": ("",),
        "remote_host": ("",),
    }
    without_effect = frozenset({"renderer", "parser", "requires", "info"})

    from_: str | None = Field(None, alias="from")
    system: str | None = Field(None, max_length=_LONGEST_TEXT)
    template: Annotated[str, AfterValidator(checked_template)] | None = Field(None, max_length=_LONGEST_TEXT)
    parameters: Options | None = None
    messages: list[Message] | None = Field(None, max_length=MOST_MESSAGES)
    license: str | list[str] | None = None


class CopyRequest(BodyFields):
    source: str
    destination: str


class DeleteRequest(_Named):
    pass


class PullRequest(_Named):
    without_effect = frozenset({"insecure", "username", "password"})


class PushRequest(_Named):
    without_effect = frozenset({"insecure", "username", "password"})


def managing_routes(services: Services, resolver: Resolver) -> APIRouter:
    fleet, reloader, limit = services.fleet, services.reloader, services.settings.max_body_bytes
    created = resolver.created
    router = APIRouter(tags=["ollama"])
    said: dict[str, Any] = {"error": Failure, "prefix": "Ollama"}
    lines: dict[str, Any] = {"events": (Progress,), "framing": NDJSON, **said}

    async def change(edit: Callable[[dict[str, Created]], None]) -> None:
        await asyncio.to_thread(created.change, edit)

    @router.post("/api/create", **describe(Progress, body=CreateRequest, **lines))
    async def ollama_create(request: Request) -> Response:
        """Make a name for a model with a system prompt, a template, messages and parameters of its own."""
        body = await read_body(request, CreateRequest, limit=limit)
        name = _new_name(body.asked, "model")
        if not body.from_:
            raise InvalidRequest("from is required: the model that the new name is made of", param="from")
        base = resolver.find(request, body.from_)
        earlier = base.created or Created(base=base.model.name)
        options = base.options(body.parameters)
        license = "\n".join(body.license) if isinstance(body.license, list) else body.license
        given = {
            "system": body.system,
            "template": body.template,
            "parameters": options.given if options is not None else None,
            "messages": [one.model_dump(exclude_none=True) for one in body.messages] if body.messages else None,
            "license": license,
        }
        made = msgspec.structs.replace(
            earlier,
            **{key: value for key, value in given.items() if value is not None},
            modified=time.time(),
            files=[],
        )
        await change(lambda models: models.update({name: made}))
        steps = ["using existing layer", "writing manifest", "success"]
        if not body.stream:
            return JSON(Progress(status="success"))

        async def progress() -> AsyncGenerator[bytes]:
            for step in steps:
                yield NDJSON.event(_encode(Progress(status=step)))

        return EventStream(progress(), NDJSON)

    @router.post("/api/copy", **describe(Progress, body=CopyRequest, **said))
    async def ollama_copy(request: Request) -> Response:
        """Make another name for a model, or for a name that was made."""
        body = await read_body(request, CopyRequest, limit=limit)
        name = _new_name(body.destination, "destination")
        source = resolver.find(request, body.source)
        copy = msgspec.structs.replace(
            source.created or Created(base=source.model.name), modified=time.time(), files=[]
        )
        await change(lambda models: models.update({name: copy}))
        return JSON(Progress(status="success"))

    @router.delete("/api/delete", **describe(Progress, body=DeleteRequest, **said))
    async def ollama_delete(request: Request) -> Response:
        """Delete a name that was made here. If a pull made it, its files are deleted too. Other files are not."""
        body = await read_body(request, DeleteRequest, limit=limit)
        own = names.match(body.asked, created.all())
        if own is None:
            resolver.find(request, body.asked)
            raise FeatureDisabled(
                f"{body.asked!r} is a file that this API has not downloaded: remove the file, then POST /models"
            )
        files = created.all()[own].files
        base = resolver.find(request, own).model if files else None

        def forget(models: dict[str, Created]) -> None:
            models.pop(own, None)

        await change(forget)
        if files and base is not None:
            await fleet.unload(base)
            await asyncio.to_thread(_remove, files, reloader.models_directory)
            await reloader.rescan()
        return JSON(Progress(status="success"))

    @router.post("/api/pull", **describe(Progress, body=PullRequest, **lines))
    async def ollama_pull(request: Request) -> Response:
        """Download a model from the Hugging Face hub: `hf.co/OWNER/NAME[:QUANTISATION]`. One that is served already is
        not downloaded again.
        """
        body = await read_body(request, PullRequest, limit=limit)
        name = body.asked
        source = _source(name)
        if source is None:
            try:
                resolver.find(request, name)
            except ModelNotFound:
                raise InvalidRequest(
                    f"{name!r} is not served, and Ollama's registry is not supported: pull "
                    "hf.co/OWNER/NAME[:QUANTISATION] from the Hugging Face hub",
                    param="model",
                ) from None
        if source is not None:
            _ = services.downloads.folder  # refused before the stream begins
        events = _pulled(services, resolver, name, source)
        if body.stream:
            return EventStream(events, NDJSON)
        await until_disconnect(request, _finished(events))
        return JSON(Progress(status="success"))

    @router.post("/api/push", **describe(Progress, body=PushRequest, **said))
    async def ollama_push(request: Request) -> Response:
        """Refused: models are not uploaded."""
        await read_body(request, PushRequest, limit=limit)
        raise NotSupported("models are not uploaded from this server")

    @router.post("/api/blobs/{digest}", include_in_schema=False)
    async def add_blob(digest: str) -> Response:
        """Refused: no file is uploaded."""
        raise NotSupported(
            "models are not uploaded over HTTP: put the GGUF file into the models directory, or pull it from the hub"
        )

    return router


def _new_name(name: str, param: str) -> str:
    if not names.is_valid(name):
        raise InvalidRequest(f"{param}: {name[:80]!r} is not a valid name: use [OWNER/]MODEL[:TAG]", param=param)
    return names.canonical(name)


def _source(name: str) -> Source | None:
    """The model on the hub, if the name is one of the hub's."""
    rest = name.removeprefix("https://").removeprefix("http://")
    for host in ("hf.co/", "huggingface.co/"):
        if rest.startswith(host):
            return hub_source(rest.removeprefix(host).removesuffix(names.LATEST))
    return None


def _remove(files: list[str], folder: Path | None) -> None:
    for name in files:
        path = Path(name)
        if folder is not None and path.is_relative_to(folder.absolute()):
            path.unlink(missing_ok=True)


async def _finished(events: AsyncGenerator[bytes]) -> None:
    async with aclosing(events):
        async for _ in events:
            pass


async def _pulled(services: Services, resolver: Resolver, name: str, source: Source | None) -> AsyncGenerator[bytes]:
    """The lines of a download. Closing it ends the download, which the next one continues."""
    yield _line(status="pulling manifest")
    if source is not None:
        downloads = services.downloads
        is_ours = downloads.running(str(source)) is None
        download = downloads.begin(source)
        try:
            async with aclosing(downloads.follow(download)) as transfers:
                async for file in transfers:
                    status = f"pulling {file.digest[:12]}"
                    yield _line(status=status, digest=f"sha256:{file.digest}", total=file.total, completed=file.done)
        finally:
            if is_ours:
                downloads.cancel(download.name)  # if it is still running: the client has disconnected
        yield _line(status="verifying sha256 digest")
        model = download.model
        assert model is not None, "it has finished"
        yield _line(status="writing manifest")
        made = Created(base=model.name, modified=time.time(), files=[file.path for file in model.files])
        await asyncio.to_thread(resolver.created.change, lambda models: models.update({names.canonical(name): made}))
    yield _line(status="success")


def _line(**fields: Any) -> bytes:
    return NDJSON.event(_encode(Progress(**fields)))

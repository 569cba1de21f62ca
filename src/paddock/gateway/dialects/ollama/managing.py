"""Names and files: `/api/create`, `/api/copy`, `/api/delete` and `/api/pull`. They require an admin key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import AfterValidator, BeforeValidator, Field

from paddock.errors import (
    FeatureDisabled,
    HubUnreachable,
    InvalidRequest,
    ModelNotFound,
    NotSupported,
    PullFailed,
    Unavailable,
)
from paddock.fleet.catalogue.hub import Source, pull
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

_log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode
_LONGEST_TEXT = 1 << 20
_PAUSE = 0.25
"""Seconds between two reports of a download."""


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
        folder = reloader.models_directory
        if source is not None and folder is None:
            raise FeatureDisabled("this server serves no folder of models: start it with --models-dir to pull models")
        events = _pulled(services, resolver, name, source, folder)
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
            try:
                return Source.parse(rest.removeprefix(host).removesuffix(names.LATEST))
            except PullFailed as error:
                raise InvalidRequest(error.message, param="model") from None
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


async def _pulled(
    services: Services, resolver: Resolver, name: str, source: Source | None, folder: Path | None
) -> AsyncGenerator[bytes]:
    """The lines of a download. Closing it ends the download, which the next one continues."""
    yield _line(status="pulling manifest")
    if source is not None and folder is not None:
        download = _Download(source, folder)
        try:
            async with aclosing(download.lines()) as lines:
                async for line in lines:
                    yield line
        finally:
            download.is_cancelled = True
        path = download.path
        yield _line(status="verifying sha256 digest")
        await services.reloader.rescan()
        model = next((one for one in services.fleet.catalogue if Path(one.path) == path), None)
        if model is None:
            raise Unavailable(f"{path.name} was downloaded, but it is not served: another model has its name")
        yield _line(status="writing manifest")
        files = [file.path for file in model.files]
        made = Created(base=model.name, modified=time.time(), files=files)
        await asyncio.to_thread(resolver.created.change, lambda models: models.update({names.canonical(name): made}))
        _log.info("pulled", model=model.name, source=name)
    yield _line(status="success")


class _Cancelled(Exception):
    """The client has disconnected."""


class _Download:
    """A download on a thread."""

    def __init__(self, source: Source, folder: Path) -> None:
        self._source, self._folder = source, folder.absolute()
        self._seen: dict[str, tuple[int, int]] = {}
        self.is_cancelled = False
        self.path = Path()

    async def lines(self) -> AsyncGenerator[bytes]:
        running = asyncio.ensure_future(asyncio.to_thread(self._pull))
        running.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it
        reported: dict[str, tuple[int, int]] = {}
        done = False
        while not done:
            await asyncio.wait({running}, timeout=_PAUSE)
            done = running.done()
            for digest, (completed, total) in self._seen.copy().items():
                if reported.get(digest) != (completed, total):
                    reported[digest] = (completed, total)
                    status = f"pulling {digest[:12]}"
                    yield _line(status=status, digest=f"sha256:{digest}", total=total, completed=completed)
        try:
            self.path = running.result()
        except HubUnreachable as error:
            raise Unavailable(error.message, retry_after=5) from None
        except PullFailed as error:
            raise InvalidRequest(error.message, param="model") from None

    def _pull(self) -> Path:
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # documented

        disable_progress_bars()
        return pull(self._source, self._folder, say=lambda line: _log.info(line), progress=self._progress)

    def _progress(self, digest: str, completed: int, total: int) -> None:
        if self.is_cancelled:
            raise _Cancelled
        self._seen[digest] = (completed, total)


def _line(**fields: Any) -> bytes:
    return NDJSON.event(_encode(Progress(**fields)))

"""Downloads models from the hub into the models directory while the server runs, and deletes what was downloaded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from paddock.errors import (
    FeatureDisabled,
    HubUnreachable,
    InvalidRequest,
    PaddockError,
    PullFailed,
    Unavailable,
)
from paddock.fleet import Broadcast, Fleet, Model
from paddock.fleet.catalogue.files import ModelFile
from paddock.fleet.catalogue.hub import (
    PullCancelled,
    Source,
    Transfer,
    pull,
    verified_files,
)
from paddock.gateway.ops.reload import Reloader

_log = structlog.get_logger(__name__)
_MOST_RUNNING = 4
_MOST_ENDED = 20
"""Downloads that are listed after their end."""
_MOST_UNREAD = 100
_PAUSE = 0.25
"""Seconds between two reports of a file."""

State = Literal["running", "finished", "failed", "cancelled"]


@dataclass(slots=True)
class Download:
    """One download. It belongs to the event loop; `is_cancelled` is read by its thread."""

    source: Source
    state: State = "running"
    files: dict[str, Transfer] = field(default_factory=dict)
    """By address."""
    error: PaddockError | None = None
    model: Model | None = None
    """The model that is served now, if it has finished."""
    is_cancelled: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return str(self.source)


Change = Literal["download_progress", "download_finished", "download_failed", "model_remove", "models_reload"]
"""llama-server's names."""


@dataclass(frozen=True, slots=True)
class ModelChange:
    """An event for those who watch the models."""

    event: Change
    model: str
    """`*` for all."""
    files: dict[str, Transfer] = field(default_factory=dict)
    reason: str | None = None


def hub_source(name: str, *, param: str = "model") -> Source:
    """The model on the hub that a request names. Raises `InvalidRequest`."""
    try:
        return Source.parse(name)
    except PullFailed as error:
        raise InvalidRequest(error.message, param=param) from None


class Downloads:
    def __init__(self, fleet: Fleet, reloader: Reloader) -> None:
        self._fleet, self._reloader = fleet, reloader
        self._downloads: dict[str, Download] = {}
        self._changes: Broadcast[ModelChange] = Broadcast(_MOST_UNREAD)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def folder(self) -> Path:
        """Raises `FeatureDisabled` if the server serves no folder."""
        folder = self._reloader.models_directory
        if folder is None:
            raise FeatureDisabled(
                "this server serves no folder of models: start it with --models-dir to download and delete models"
            )
        return folder.absolute()

    def all(self) -> list[Download]:
        """The running ones and the last that have ended, the newest last."""
        return list(self._downloads.values())

    def running(self, name: str) -> Download | None:
        """The running download of this name."""
        found = self._downloads.get(name)
        return found if found is not None and found.state == "running" else None

    def begin(self, source: Source) -> Download:
        """Start a download, or return the one that runs already. Raises `FeatureDisabled`, or `Unavailable` if too many
        are running.
        """
        folder = self.folder
        if (running := self.running(str(source))) is not None:
            return running
        if sum(one.state == "running" for one in self._downloads.values()) >= _MOST_RUNNING:
            raise Unavailable(f"{_MOST_RUNNING} downloads are running: wait for one, or cancel one", retry_after=30)
        download = Download(source)
        self._downloads.pop(download.name, None)
        self._downloads[download.name] = download
        for name in [one.name for one in self.all() if one.state != "running"][:-_MOST_ENDED]:
            del self._downloads[name]
        task = asyncio.get_running_loop().create_task(self._run(download, folder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return download

    def cancel(self, name: str) -> bool:
        """Stop a download; the next one of the same model continues it. False if none of this name runs."""
        download = self.running(name)
        if download is None:
            return False
        download.is_cancelled = True
        return True

    async def follow(self, download: Download) -> AsyncGenerator[Transfer]:
        """The progress of its files until it ends. Raises why it has failed."""
        reported: dict[str, Transfer] = {}
        has_ended = False
        while not has_ended:
            has_ended = download.state != "running"
            for url, transfer in list(download.files.items()):
                if reported.get(url) != transfer:
                    reported[url] = transfer
                    yield transfer
            if not has_ended:
                with suppress(TimeoutError):
                    await asyncio.wait_for(download.ended.wait(), _PAUSE)
        if download.error is not None:
            raise download.error

    def close(self) -> None:
        for download in self._downloads.values():
            download.is_cancelled = True
        self._changes.close()

    async def watch(self) -> AsyncGenerator[ModelChange]:
        """The progress of the running downloads, then each change."""
        first = [_progress(one) for one in self._downloads.values() if one.state == "running"]
        async with aclosing(self._changes.subscribe(first)) as changes:
            async for change in changes:
                yield change

    def removable(self, models: Iterable[Model]) -> set[str]:
        """The names of those whose files were all downloaded into the models directory. Reads files."""
        folder = self._reloader.models_directory
        if folder is None:
            return set()
        own = verified_files(folder.absolute()).unchanged()
        return {
            model.name
            for model in models
            if model.source == "models_dir" and model.files and own.issuperset(map(_path, model.files))
        }

    async def remove(self, model: Model) -> None:
        """Unload a model and delete its files. Raises `FeatureDisabled` if it was not downloaded."""
        folder = self.folder
        if model.name not in await asyncio.to_thread(self.removable, [model]):
            raise FeatureDisabled(
                f"{model.name} was not downloaded by this server: remove its file yourself, then POST /models"
            )
        await self._fleet.unload(model)
        await asyncio.to_thread(verified_files(folder).delete, list(map(_path, model.files)))
        await self._reloader.rescan()
        _log.info("deleted", model=model.name)
        self._changes.publish(ModelChange("model_remove", model.name))

    async def _run(self, download: Download, folder: Path) -> None:
        _log.info("downloading", source=download.name)
        try:
            path = await self._pulled(download, folder)
            await self._reloader.rescan()
            download.model = self._model_at(path)
            if download.model is None:
                raise Unavailable(f"{path.name} was downloaded, but it is not served: another model has its name")
            download.state = "finished"
            _log.info("downloaded", source=download.name, model=download.model.name)
            self._changes.publish(ModelChange("download_finished", download.name))
            self._changes.publish(ModelChange("models_reload", "*"))
        except PullCancelled:
            download.error = Unavailable("the download was cancelled")
            self._fail(download, "cancelled", "the download was cancelled")
        except HubUnreachable as error:
            download.error = Unavailable(error.message, retry_after=5)
            self._fail(download, "failed", error.message)
        except PullFailed as error:
            download.error = InvalidRequest(error.message, param="model")
            self._fail(download, "failed", error.message)
        except PaddockError as error:
            download.error = error
            self._fail(download, "failed", error.message)
        finally:
            download.ended.set()

    def _model_at(self, path: Path) -> Model | None:
        return next((one for one in self._fleet.catalogue if Path(one.path).absolute() == path), None)

    def _fail(self, download: Download, state: State, reason: str) -> None:
        download.state = state
        _log.warning("not downloaded", source=download.name, error=reason)
        self._changes.publish(ModelChange("download_failed", download.name, reason=reason))

    async def _pulled(self, download: Download, folder: Path) -> Path:
        """Pull on a thread of its own: those of the event loop are few, and a download takes long."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Path] = loop.create_future()
        reported: dict[str, float] = {}

        def progress(transfer: Transfer) -> None:
            if download.is_cancelled:
                raise PullCancelled
            now = time.monotonic()
            if transfer.done == transfer.total or now > reported.get(transfer.url, 0.0) + _PAUSE:
                reported[transfer.url] = now
                loop.call_soon_threadsafe(self._advance, download, transfer)

        def work() -> None:
            from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # documented

            disable_progress_bars()
            try:
                path = pull(download.source, folder, say=lambda line: _log.info(line), progress=progress)
            except BaseException as error:
                _tell(loop, done, error)
            else:
                _tell(loop, done, path)

        # A daemon, so that a server that stops does not wait for the network.
        threading.Thread(target=work, name="download", daemon=True).start()
        return await done

    def _advance(self, download: Download, transfer: Transfer) -> None:
        download.files[transfer.url] = transfer
        self._changes.publish(_progress(download))


def _path(file: ModelFile) -> Path:
    return Path(file.path).absolute()


def _progress(download: Download) -> ModelChange:
    return ModelChange("download_progress", download.name, dict(download.files))


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[Path], result: Path | BaseException) -> None:
    def tell() -> None:
        if done.cancelled():
            return
        if isinstance(result, BaseException):
            done.set_exception(result)
        else:
            done.set_result(result)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        pass  # the server has stopped meanwhile

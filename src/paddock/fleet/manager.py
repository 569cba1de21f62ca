"""The gateway's interface to the models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec
import structlog

from paddock.errors import InvalidRequest, ModelUnloaded, NotSupported, PaddockError, ServerStopping, StartupError
from paddock.fleet.catalogue.adapters import default_adapters, parse_adapters
from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.kinds import kind_of
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.lifecycle.live_feed import LiveFeed
from paddock.fleet.lifecycle.model_state import ModelStatus, combined_status
from paddock.fleet.lifecycle.preconditions import LoadForecast
from paddock.fleet.lifecycle.replica_sets import ReplicaSets
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.memory.accounts import Memory
from paddock.fleet.memory.cache_contents import merged_contents
from paddock.fleet.memory.machine import Machine
from paddock.fleet.option_changes import LoadOptions, OptionChanges, with_options
from paddock.fleet.process.environment import has_gpu
from paddock.fleet.process.worker import WorkerProcess
from paddock.fleet.requests.generation import Generation, WorkerDispatch
from paddock.fleet.requests.request_record import CANCELLED, OK, RequestRecord
from paddock.replicas.replica import Backend, Dispatch, PoolingBackend, Replicas, ReplicaStatus
from paddock.replicas.retries import MOST_RESTARTS
from paddock.types import (
    Adapters,
    EngineOptions,
    GenerateRequest,
    ModelInfo,
    ModelKind,
    Pooling,
    PoolRequest,
    SlotAction,
    SlotState,
    TenantCache,
    TextQuestion,
)
from paddock.wire.messages import Pooled, SlotDone, Text, Tokens

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Fleet:
    """Serves requests to models; the lifecycle loads them as needed."""

    def __init__(
        self,
        catalogue: Catalogue,
        rules: Rules | None = None,
        memory: Memory | None = None,
        connect: Callable[[Model], Replicas] | None = None,
    ) -> None:
        """`connect` returns the replicas of a model on a cluster."""
        self.catalogue = catalogue
        self.rules = rules or Rules()
        self._lifecycle = Lifecycle(_worker_models(catalogue), self.rules, memory or Machine(), gpu=has_gpu())
        self.records = self._lifecycle.records
        """The counters of the models."""
        self._replica_sets = ReplicaSets(catalogue, self._lifecycle, connect or _no_cluster)
        self.live_feed = LiveFeed(self._lifecycle, lambda: self.catalogue, self._status, self._replica_sets.of)
        self._adapters: dict[str, Adapters] = {}
        self._configured = catalogue
        """As the settings say."""
        self._changes = OptionChanges()
        """Since the last reload."""
        self._preloading: dict[str, asyncio.Task[None]] = {}
        self._quarantines: dict[str, asyncio.Lock] = {}
        self._observers: list[Callable[[RequestRecord], None]] = []
        self.started = time.monotonic()

    def status(self) -> list[ModelStatus]:
        return [self._status(model) for model in self.catalogue]

    def worker_statuses(self) -> list[ModelStatus]:
        """The status of every local worker: of each model, or of each of its local replicas."""
        return [
            self._lifecycle.status(worker.name) for model in self.catalogue for worker in model.worker_models().values()
        ]

    def replicas(self, model: Model) -> list[ReplicaStatus]:
        """Its replicas; empty if one worker serves it."""
        replicas = self._replica_sets.of(model)
        return [] if replicas is None else replicas.status()

    def observe(self, observer: Callable[[RequestRecord], None]) -> None:
        """Call `observer` at the end of every request, in the context of its caller."""
        self._observers.append(observer)

    async def generate(self, model: Model, request: GenerateRequest) -> Generation:
        """Load the model if necessary, and wait until its worker accepts the request."""
        if (kind := kind_of(await self.pooling(model))) != "generation":
            raise InvalidRequest(f"{model.name} is served for {kind}: it does not generate text", param="model")

        record = RequestRecord(model.name, "generation", request.origin, self._ended, self._first_token)
        quarantine = self._quarantines.setdefault(model.name, asyncio.Lock())
        generation = Generation(request, self._dispatch(model, request), record, quarantine)
        try:
            await generation.begin()
        except BaseException:
            generation.close()
            raise
        return generation

    def progress(self, model: Model) -> str:
        """What a request for this model waits for."""
        if all(other.name != model.name for other in self.catalogue):
            return f"waiting for {model.name}, which is no longer served"
        if model.clustered:
            return f"waiting for a replica of {model.name}"
        status = self._status(model)
        match status.state:
            case "loading":
                return f"loading {model.name}" + (f" {status.progress:.0%}" if status.progress else "")
            case "loaded":
                return f"reading the prompt for {model.name}"
            case _:
                return f"waiting for memory for {model.name}"

    async def pool(
        self,
        model: Model,
        kind: ModelKind,
        request: PoolRequest,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Pooled:
        """Compute embeddings or scores with a model of that kind. Cancelling it stops the computation.

        `on_progress` gets the number of tokens computed so far.
        """
        served = kind_of(await self.pooling(model))
        is_beside = served == "generation" and kind == "embedding"
        if served != kind and not is_beside:
            raise NotSupported(
                f"{model.name} is served for {served} and does not support {kind}. Start it with `--{kind}`, or use a "
                "model made for it",
                param="model",
            )
        if is_beside and not model.clustered and not model.replicas:
            await self._lifecycle.reserve_embeddings(model.name)
        record = RequestRecord(model.name, kind, request.origin, self._ended)

        def computed(tokens: int) -> None:
            record.prompt_tokens = tokens
            on_progress(tokens)

        async def pooled(worker: Backend) -> Pooled:
            if not isinstance(worker, PoolingBackend):
                raise NotSupported(f"{model.name} has remote replicas, which only generate text", param="model")
            record.model_ready()
            return await worker.pool(request, computed)

        try:
            answer = await self._ask_with_retries(model, pooled)
            record.prompt_tokens = answer.tokens
            record.end(OK)
            return answer
        except PaddockError as error:
            record.end(error.code)
            raise
        finally:
            record.end(CANCELLED)

    async def pooling(self, model: Model) -> Pooling | None:
        """The model's pooling; None if it generates text. Reads its header at most."""
        info = None if model.replicas else self.info(model)
        return info.pooling if info is not None else await asyncio.to_thread(model.pooling)

    async def kind(self, model: Model) -> ModelKind | None:
        """What the model is served for; None if it does not support the requested kind. Loads nothing."""
        return await asyncio.to_thread(model.kind)

    async def slots(self, model: Model) -> list[SlotState]:
        """The slots of a model, numbered over all its replicas; empty while it is not loaded. Loads nothing."""
        if (replicas := self._replica_sets.of(model)) is not None:
            return [msgspec.structs.replace(slot, id=number) for number, slot in enumerate(await replicas.slots())]
        worker = self._lifecycle.worker(model.name)
        return [] if worker is None else await worker.slots()

    async def cache_contents(self, model: Model) -> list[TenantCache]:
        """What its workers keep for each tenant; empty while it is not loaded. Loads nothing."""
        return merged_contents(await asyncio.gather(*(worker.cache_contents() for worker in self._loaded(model))))

    async def clear_cache(self, model: Model, tenant: str | None) -> list[TenantCache]:
        """Drop what its workers keep and do not use, of one tenant or of all. Returns what is left. Loads nothing."""
        if (replicas := self._replica_sets.of(model)) is not None:
            replicas.forget_prompts(tenant)
        return merged_contents(await asyncio.gather(*(worker.clear_cache(tenant) for worker in self._loaded(model))))

    def _loaded(self, model: Model) -> list[WorkerProcess]:
        workers = [self._lifecycle.worker(one.name) for one in model.worker_models().values()]
        return [worker for worker in workers if worker is not None and worker.alive]

    async def act_on_slot(self, model: Model, action: SlotAction) -> SlotDone:
        """Save, restore or erase a slot, once it is free."""
        if (kind := kind_of(await self.pooling(model))) != "generation":
            raise NotSupported(f"{model.name} is served for {kind}: its slots hold no prompts", param="model")
        if model.replicas or model.clustered:
            raise NotSupported(
                f"{model.name} has replicas: slots can be saved and restored only with one worker", param="model"
            )
        worker = await self._lifecycle.ensure_loaded(model.name)
        return await worker.act_on_slot(action)

    async def ask(self, model: Model, question: TextQuestion) -> Tokens | Text:
        """Tokenize, detokenize or render; loads the model if necessary."""
        return await self._ask_with_retries(model, lambda backend: backend.ask(question))

    def adapters(self, model: Model) -> Adapters:
        """The default adapters for requests that list none."""
        chosen = self._adapters.get(model.name)
        return default_adapters(model.adapters) if chosen is None else chosen

    def adapters_for(self, model: Model, listed: Sequence[tuple[int, float]] | None) -> Adapters:
        """The active adapters of a request that lists these; None: it lists none. Raises `InvalidRequest`."""
        return self.adapters(model) if listed is None else parse_adapters(model.adapters, listed, param="lora")

    def set_adapters(self, model: Model, listed: Sequence[tuple[int, float]]) -> None:
        """Set the default adapters for later requests. Raises `InvalidRequest`."""
        self._adapters[model.name] = parse_adapters(model.adapters, listed, param="")

    def info(self, model: Model) -> ModelInfo | None:
        """The info of a loaded model; None while it is not loaded."""
        if (replicas := self._replica_sets.of(model)) is not None:
            return replicas.info
        worker = self._lifecycle.worker(model.name)
        return None if worker is None else worker.info

    def options(self, model: Model) -> EngineOptions:
        """The options of its worker; those of its settings while it is not loaded, or if it has replicas."""
        return self._lifecycle.options(model)

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────

    def preload(self, on_failure: Callable[[Model, PaddockError], None] = lambda model, error: None) -> None:
        """Start to load the preloaded models, and to check remote replicas. `on_failure` gets each failed load."""
        self._replica_sets.start()
        for model in self.catalogue:
            if (model.preload or model.settings.pinned) and not model.clustered:
                self._preloading[model.name] = asyncio.create_task(self._preload(model, on_failure))

    def is_unloaded(self, model: Model) -> bool:
        """Whether the model is neither loaded nor being loaded."""
        return not model.clustered and not model.is_remote and self._status(model).state == "unloaded"

    def is_preloading(self, model: Model) -> bool:
        """Whether its preload is still running."""
        return model.name in self._preloading

    async def load(self, model: Model) -> None:
        """Load a model with all its replicas, ignoring earlier failures. Raises why it cannot be loaded."""
        _refuse_cluster(model)
        names = [worker.name for worker in model.worker_models().values()]
        for name in names:
            self._lifecycle.reset_failures(name)
        await asyncio.gather(*map(self._lifecycle.ensure_loaded, names))

    async def unload(self, model: Model) -> bool:
        """Unload a model after its running requests. False if it was not loaded."""
        _refuse_cluster(model)
        names = [worker.name for worker in model.worker_models().values()]
        return any(await asyncio.gather(*map(self._lifecycle.unload, names)))

    def stay_loaded(self, model: Model, seconds: float) -> None:
        """Unload a model after so many idle seconds from now on, as long as it stays loaded; 0: never."""
        for worker in model.worker_models().values():
            self._lifecycle.stay_loaded(worker.name, seconds)

    def replica_set(self, model: Model) -> Replicas:
        """Its replicas, to drain one. Raises `InvalidRequest` if one worker serves it."""
        replicas = self._replica_sets.of(model)
        if replicas is None:
            raise InvalidRequest(f"{model.name} has no replicas", param="replica")
        return replicas

    def reload(self, catalogue: Catalogue, rules: Rules, *, keep_changes: bool = False) -> list[str]:
        """Serve the models of this catalogue. Returns the names of new, changed and removed models.

        `keep_changes` keeps the options and chat templates that were changed since the last reload.
        """
        if not keep_changes:
            self._changes.clear()
        before = {model.name: model for model in self.catalogue}
        self.rules, self._configured = rules, catalogue
        self._replace(self._changes.apply(catalogue))
        after = {model.name: model for model in self.catalogue}
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        for name in changed:
            self._adapters.pop(name, None)
        return changed

    def set_chat_template(self, model: Model, template: str) -> None:
        """Set the chat template; empty: the model's own. A loaded model is unloaded after its running requests. A
        reload of the settings restores their template.
        """
        if model.is_remote or model.clustered:
            raise NotSupported(
                f"{model.name} is served by other servers, which have their own template", param="chat_template"
            )
        self._changes.set(model, "chat_template", template)
        self._replace(self._changes.apply(self._configured))

    def set_load_options(self, model: Model, options: LoadOptions) -> Model:
        """Load the model with these options from now on. A loaded model is unloaded after its running requests. A
        reload of the settings restores theirs. Returns the changed model.
        """
        _refuse_remote(model)
        self._changes.replace(model, options.given(), among=frozenset(options.__struct_fields__))
        self._replace(self._changes.apply(self._configured))
        return self.catalogue.named(model.name)

    async def memory_limits(self) -> Mapping[str, int]:
        """The most bytes that all models together may take on each device now; empty without a limit."""
        return await self._lifecycle.limits()

    async def fits(self, model: Model, options: LoadOptions) -> LoadForecast:
        """What a load with these options would take, and whether that fits. Loads nothing."""
        _refuse_remote(model)
        return await self._lifecycle.fits(with_options(model, options.given()))

    def _replace(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._lifecycle.replace(_worker_models(catalogue), self.rules)
        self._replica_sets.replace(catalogue)

    async def watch(self) -> AsyncGenerator[ModelStatus]:
        """The status of every model, then of each model that changes."""
        async with aclosing(self._lifecycle.watch()) as names:
            async for name in names:
                for model in self.catalogue:
                    if any(worker.name == name for worker in model.worker_models().values()):
                        yield self._status(model)

    @property
    def stopping(self) -> bool:
        """Whether new requests are refused."""
        return self._lifecycle.stopping

    async def drain(self, grace: float) -> None:
        """Refuse new requests; let running ones finish within `grace` seconds, then fail them."""
        self.live_feed.close()
        for task in list(self._preloading.values()):  # no request waits for it
            task.cancel()
        await asyncio.gather(self._lifecycle.drain(grace), self._replica_sets.stop(grace))

    def abort(self) -> None:
        """Fail every request and cancel every load, now."""
        self._lifecycle.abort()

    async def close(self) -> None:
        await self._replica_sets.close()
        await self._lifecycle.close()
        await asyncio.gather(*self._preloading.values(), return_exceptions=True)

    def _first_token(self, record: RequestRecord) -> None:
        self.records.of(record.model).add_first_token(record)

    def _ended(self, record: RequestRecord) -> None:
        self.records.of(record.model).add_request(record)
        for observer in self._observers:
            observer(record)

    def _status(self, model: Model) -> ModelStatus:
        replicas = self._replica_sets.of(model)
        if replicas is None:
            return self._lifecycle.status(model.name)
        workers = [self._lifecycle.status(worker.name) for worker in model.worker_models().values()]
        return combined_status(model, workers, replicas.status())

    def _dispatch(self, model: Model, request: GenerateRequest | None = None) -> Dispatch:
        if (replicas := self._replica_sets.of(model)) is None:
            restarts = 1 if request is None else MOST_RESTARTS
            return WorkerDispatch(lambda: self._lifecycle.ensure_loaded(model.name), restarts=restarts)
        return replicas.dispatch(request)

    async def _ask_with_retries(self, model: Model, ask: Callable[[Backend], Awaitable[T]]) -> T:
        """Call `ask` with a backend; retry after a crash."""
        dispatch = self._dispatch(model)
        while True:
            backend = await dispatch.acquire()
            try:
                return await ask(backend)
            except PaddockError as error:
                if not dispatch.should_retry(error):
                    raise

    async def _preload(self, model: Model, on_failure: Callable[[Model, PaddockError], None]) -> None:
        try:
            await self.load(model)
        except (ModelUnloaded, ServerStopping):
            pass  # removed by a reload, /admin/unload or a signal
        except PaddockError as error:
            _log.error("preload failed", model=model.name, error=error.message)
            on_failure(model, error)
        finally:
            del self._preloading[model.name]


def _refuse_cluster(model: Model) -> None:
    if model.clustered:
        raise NotSupported(f"the cluster manages the replicas of {model.name}", param="model")


def _refuse_remote(model: Model) -> None:
    if model.is_remote or model.clustered:
        raise NotSupported(f"{model.name} is served by other servers, which have their own options", param="model")


def _no_cluster(model: Model) -> Replicas:
    raise StartupError(f"{model.name} needs a cluster; this server has no connection to one")


def _worker_models(catalogue: Catalogue) -> list[Model]:
    """Each model that has a worker here, or each of its local replicas."""
    return [worker for model in catalogue for worker in model.worker_models().values()]

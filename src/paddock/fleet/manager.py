"""The models as the gateway knows them: asked for generations, vectors and facts, by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import msgspec
import structlog

from paddock.errors import InvalidRequest, ModelUnloaded, NotSupported, PaddockError, ServerStopping, StartupError
from paddock.fleet.catalogue.adapters import default_adapters, parse_adapters
from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.kinds import kind_of
from paddock.fleet.catalogue.model import Model
from paddock.fleet.generation import Generation, OneWorker
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.lifecycle.live_feed import LiveFeed
from paddock.fleet.lifecycle.model_state import ModelStatus, combined_status
from paddock.fleet.lifecycle.policy import Bytes
from paddock.fleet.lifecycle.records import Records
from paddock.fleet.lifecycle.replica_sets import ReplicaSets
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.memory.accounts import Memory
from paddock.fleet.memory.machine import Machine
from paddock.fleet.process.environment import has_gpu
from paddock.fleet.requests.request_record import CANCELLED, OK, RequestRecord
from paddock.replicas.replica import Entrance, MakesVectors, Replicas, ReplicaStatus, Serving
from paddock.replicas.retries import MOST_RESTARTS
from paddock.types import (
    Adapters,
    GenerateRequest,
    ModelInfo,
    ModelKind,
    Pooling,
    PoolRequest,
    SlotAction,
    SlotState,
    TextQuestion,
)
from paddock.wire import Pooled, SlotDone, Text, Tokens

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Fleet:
    """What the gateway asks of the models. Whether one must be loaded first is the lifecycle's business."""

    def __init__(
        self,
        catalogue: Catalogue,
        rules: Rules | None = None,
        memory: Memory | None = None,
        connect: Callable[[Model], Replicas] | None = None,
    ) -> None:
        """`connect` opens the replicas of a model that is served on a cluster."""
        self.catalogue = catalogue
        rules = self._rules = rules or Rules()
        self._lifecycle = Lifecycle(_worker_models(catalogue), rules, memory or Machine(), gpu=has_gpu())
        self._replica_sets = ReplicaSets(catalogue, self._lifecycle, connect or _no_cluster)
        self.live_feed = LiveFeed(self._lifecycle, lambda: self.catalogue, self._status)
        self._adapters: dict[str, Adapters] = {}
        self._templates: dict[str, str] = {}
        """Chat templates that were changed since the settings were read."""
        self._preloading: dict[str, asyncio.Task[None]] = {}
        self._quarantines: dict[str, asyncio.Lock] = {}
        self._observers: list[Callable[[RequestRecord], None]] = []
        self.started = time.monotonic()

    def status(self) -> list[ModelStatus]:
        return [self._status(model) for model in self.catalogue]

    def worker_statuses(self) -> list[ModelStatus]:
        """The same of every worker: of a model with replicas, each of them that is a worker of ours."""
        return [
            self._lifecycle.status(member.name) for model in self.catalogue for member in model.worker_models().values()
        ]

    def replicas(self, model: Model) -> list[ReplicaStatus]:
        """Those that serve it together; none of a model that one worker serves."""
        pool = self._replica_sets.of(model)
        return [] if pool is None else pool.status()

    @property
    def records(self) -> Records:
        """What has happened to the models so far."""
        return self._lifecycle.records

    @property
    def memory_limit(self) -> Bytes:
        """The most that all models together may take, on devices where somebody has set one."""
        return self._rules.memory_limit

    @property
    def cache_ram(self) -> int:
        """Bytes of host memory for the prefixes of all models together."""
        return self._rules.cache_ram

    def observe(self, told: Callable[[RequestRecord], None]) -> None:
        """Be told of every request when it has ended, in the context of whoever made it."""
        self._observers.append(told)

    async def generate(self, model: Model, request: GenerateRequest) -> Generation:
        """Have the model loaded if need be, and the request accepted by its worker."""
        if (kind := kind_of(await self.pooling(model))) != "generation":
            raise InvalidRequest(f"{model.name} is served for {kind}: it does not generate text", param="model")

        record = RequestRecord(model.name, "generation", request.origin, self._ended)
        quarantine = self._quarantines.setdefault(model.name, asyncio.Lock())
        generation = Generation(request, self._entrance(model, request), record, quarantine)
        try:
            await generation.begin()
        except BaseException:
            generation.close()
            raise
        return generation

    def progress(self, model: Model) -> str:
        """How far a model is that is waited for, in a few words."""
        if all(other.name != model.name for other in self.catalogue):
            return f"waiting for {model.name}, which is not served any more"
        if model.clustered:
            return f"waiting for a replica of {model.name}"
        status = self._status(model)
        match status.state:
            case "loading":
                return f"loading {model.name}" + (f" {status.progress:.0%}" if status.progress else "")
            case "loaded":
                return f"reading the prompt for {model.name}"
            case _:
                return f"waiting for room for {model.name}"

    async def pool(
        self,
        model: Model,
        kind: ModelKind,
        request: PoolRequest,
        begun: Callable[[int], None] = lambda _: None,
    ) -> Pooled:
        """Have vectors made, or scores given, by a model of that kind. Who stops waiting is not computed for.

        `begun` is told how many tokens are computed so far.
        """
        if (served := kind_of(await self.pooling(model))) != kind:
            raise NotSupported(
                f"{model.name} is served for {served}; for {kind} start the server with a model made for it, "
                f"or with --{kind}",
                param="model",
            )
        record = RequestRecord(model.name, kind, request.origin, self._ended)

        def computed(tokens: int) -> None:
            record.prompt_tokens = tokens
            begun(tokens)

        async def pooled(worker: Serving) -> Pooled:
            if not isinstance(worker, MakesVectors):
                raise NotSupported(f"{model.name} is served elsewhere, where only text is generated", param="model")
            record.model_ready()
            return await worker.pool(request, computed)

        try:
            answer = await self._answered(model, pooled)
            record.prompt_tokens = answer.tokens
            record.end(OK)
            return answer
        except PaddockError as error:
            record.end(error.code)
            raise
        finally:
            record.end(CANCELLED)

    async def pooling(self, model: Model) -> Pooling | None:
        """How the model makes vectors; None if it generates text. Reads its file's header at most."""
        info = None if model.replicas else self.info(model)
        return info.pooling if info is not None else await asyncio.to_thread(model.pooling)

    async def kind(self, model: Model) -> ModelKind | None:
        """What the model is served for; None if it cannot be served as the operator wants. Wakes nothing."""
        return await asyncio.to_thread(model.kind)

    async def slots(self, model: Model) -> list[SlotState]:
        """The running places of a loaded model; none while it is not loaded. Wakes nothing.

        Those of replicas are numbered on from one to the next.
        """
        if (pool := self._replica_sets.of(model)) is not None:
            return [msgspec.structs.replace(slot, id=number) for number, slot in enumerate(await pool.slots())]
        worker = self._lifecycle.worker(model.name)
        return [] if worker is None else await worker.slots()

    async def act_on_slot(self, model: Model, action: SlotAction) -> SlotDone:
        """Save, restore or erase what a slot remembers, as soon as the slot is free."""
        if (kind := kind_of(await self.pooling(model))) != "generation":
            raise NotSupported(f"{model.name} is served for {kind}: its slot remembers nothing", param="model")
        if model.replicas or model.clustered:
            raise NotSupported(
                f"{model.name} has several replicas: their slots are not saved or restored", param="model"
            )
        worker = await self._lifecycle.ensure_loaded(model.name)
        return await worker.act(action)

    async def ask(self, model: Model, question: TextQuestion) -> Tokens | Text:
        """What only a model's vocabulary or template can tell; it is loaded if need be."""
        return await self._answered(model, lambda serving: serving.ask(question))

    def adapters(self, model: Model) -> Adapters:
        """Those that act on requests which do not say so themselves, whether the model is loaded or not."""
        chosen = self._adapters.get(model.name)
        return default_adapters(model.adapters) if chosen is None else chosen

    def adapters_for(self, model: Model, listed: Sequence[tuple[int, float]] | None) -> Adapters:
        """The active adapters of a request that lists these; None: it lists none. Raises `InvalidRequest`."""
        return self.adapters(model) if listed is None else parse_adapters(model.adapters, listed, param="lora")

    def set_adapters(self, model: Model, listed: Sequence[tuple[int, float]]) -> None:
        """From now on just these act, for requests that come later. Raises `InvalidRequest`."""
        self._adapters[model.name] = parse_adapters(model.adapters, listed, param="")

    def info(self, model: Model) -> ModelInfo | None:
        """What a loaded model says of itself; None while it is not loaded."""
        if (pool := self._replica_sets.of(model)) is not None:
            return pool.info
        worker = self._lifecycle.worker(model.name)
        return None if worker is None else worker.info

    # ── the operator's ───────────────────────────────────────────────────────────────────────────────────────────────

    def preload(self, on_failure: Callable[[Model, PaddockError], None] = lambda model, error: None) -> None:
        """Begin to load what is to be there from the start, and to look after those who serve elsewhere.
        `on_failure` is called for each model that cannot be loaded.
        """
        self._replica_sets.start()
        for model in self.catalogue:
            if (model.preload or model.pinned) and not model.clustered:
                task = asyncio.get_running_loop().create_task(self._preload(model, on_failure))
                self._preloading[model.name] = task

    def is_preloading(self, model: Model) -> bool:
        """Whether its load at the start of the server is not over yet."""
        return model.name in self._preloading

    async def load(self, model: Model) -> None:
        """Have a model there, with all its replicas, whatever it did before. Raises what kept it from coming."""
        _must_be_ours(model)
        names = [member.name for member in model.worker_models().values()]
        for name in names:
            self._lifecycle.reset_failures(name)
        await asyncio.gather(*map(self._lifecycle.ensure_loaded, names))

    async def unload(self, model: Model) -> bool:
        """Have a model leave, after those it serves. False if it was not there."""
        _must_be_ours(model)
        names = [member.name for member in model.worker_models().values()]
        return any(await asyncio.gather(*map(self._lifecycle.unload, names)))

    def drain_replica(self, model: Model, replica: str) -> Coroutine[None, None, None]:
        """Send nothing to it any more, and wait until it has finished what it has. Raises `InvalidRequest`, at once."""
        return self._replicas_of(model).drain(replica)

    def undrain_replica(self, model: Model, replica: str) -> bool:
        """Use it again. False if it was not drained. Raises `InvalidRequest`."""
        return self._replicas_of(model).undrain(replica)

    def reload(self, catalogue: Catalogue, rules: Rules, *, keep_templates: bool = False) -> list[str]:
        """Serve what this catalogue has, and nothing else. Returns the names of those that are new, changed or gone.
        Templates that were changed since the last reload are kept if asked for, else they are the catalogue's.
        """
        if not keep_templates:
            self._templates.clear()
        catalogue = self._with_templates(catalogue)
        before = {model.name: model for model in self.catalogue}
        after = {model.name: model for model in catalogue}
        self._rules = rules
        self._replace(catalogue)
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        for name in changed:
            self._adapters.pop(name, None)
        return changed

    def set_chat_template(self, model: Model, template: str) -> None:
        """Render conversations with this template; empty: with the model's own. A loaded model leaves when it has
        answered what it has, and the next request loads it anew. A reload of the settings brings back theirs.
        """
        if model.is_remote or model.clustered:
            raise NotSupported(f"{model.name} is served elsewhere, with a template of its own", param="chat_template")
        self._templates[model.name] = template
        self._replace(self._with_templates(self.catalogue))

    def _with_templates(self, catalogue: Catalogue) -> Catalogue:
        def changed(model: Model) -> Model:
            if model.name not in self._templates:
                return model
            template = self._templates[model.name]
            return replace(model, options=msgspec.structs.replace(model.options, chat_template=template))

        return catalogue.map_models(changed) if self._templates else catalogue

    def _replace(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._lifecycle.replace(_worker_models(catalogue), self._rules)
        self._replica_sets.replace(catalogue)

    async def watch(self) -> AsyncGenerator[ModelStatus]:
        """How every model is, and then each as something happens to it."""
        async with aclosing(self._lifecycle.watch()) as names:
            async for name in names:
                for model in self.catalogue:
                    if any(member.name == name for member in model.worker_models().values()):
                        yield self._status(model)

    @property
    def stopping(self) -> bool:
        """Nothing new is taken any more."""
        return self._lifecycle.stopping

    async def drain(self, grace: float) -> None:
        """Take nothing new; let what runs finish within `grace` seconds, then end it with an error."""
        self.live_feed.close()
        for task in list(self._preloading.values()):  # which nobody waits for
            task.cancel()
        await asyncio.gather(self._lifecycle.drain(grace), self._replica_sets.stop(grace))

    def abort(self) -> None:
        """End everything that runs or loads, now."""
        self._lifecycle.abort()

    async def close(self) -> None:
        await self._replica_sets.close()
        await self._lifecycle.close()
        await asyncio.gather(*self._preloading.values(), return_exceptions=True)

    def _ended(self, record: RequestRecord) -> None:
        self.records.of(record.model).add_request(record)
        for told in self._observers:
            told(record)

    def _status(self, model: Model) -> ModelStatus:
        pool = self._replica_sets.of(model)
        if pool is None:
            return self._lifecycle.status(model.name)
        members = [self._lifecycle.status(member.name) for member in model.worker_models().values()]
        return combined_status(model, members, pool.status())

    def _entrance(self, model: Model, request: GenerateRequest | None = None) -> Entrance:
        if (pool := self._replica_sets.of(model)) is None:
            restarts = 1 if request is None else MOST_RESTARTS
            return OneWorker(lambda: self._lifecycle.ensure_loaded(model.name), restarts=restarts)
        return pool.entrance(request)

    def _replicas_of(self, model: Model) -> Replicas:
        pool = self._replica_sets.of(model)
        if pool is None:
            raise InvalidRequest(f"{model.name} has no replicas: one worker serves it", param="replica")
        return pool

    async def _answered(self, model: Model, ask: Callable[[Serving], Awaitable[T]]) -> T:
        """An answer that comes all at once: of a worker that dies over it nobody need know, but of a second one."""
        entrance = self._entrance(model)
        while True:
            serving = await entrance.enter()
            try:
                return await ask(serving)
            except PaddockError as error:
                if not entrance.may_go_elsewhere(error):
                    raise

    async def _preload(self, model: Model, on_failure: Callable[[Model, PaddockError], None]) -> None:
        try:
            await self.load(model)
        except (ModelUnloaded, ServerStopping):
            pass  # a reload, /admin/unload or a signal took it away meanwhile: nothing is wrong with it
        except PaddockError as error:
            _log.error("could not be loaded at the start", model=model.name, error=error.message)
            on_failure(model, error)
        finally:
            del self._preloading[model.name]


def _must_be_ours(model: Model) -> None:
    if model.clustered:
        raise NotSupported(f"the cluster has the replicas of {model.name} come and go", param="model")


def _no_cluster(model: Model) -> Replicas:
    raise StartupError(f"{model.name} is served on a cluster; this server has no connection to the cluster")


def _worker_models(catalogue: Catalogue) -> list[Model]:
    """Each model that has a worker here, or each of its local replicas."""
    return [member for model in catalogue for member in model.worker_models().values()]

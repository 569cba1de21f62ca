"""The pools that there are, as the catalogue has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.local import LocalReplica
from paddock.replicas.pool import Pool
from paddock.replicas.replica import Replica, Replicas


class Pools:
    """One for each model with replicas. What has not changed is not touched by a reload."""

    def __init__(self, catalogue: Catalogue, lifecycle: Lifecycle, connect: Callable[[Model], Replicas]) -> None:
        self._lifecycle = lifecycle
        self._connect = connect
        self._pools: dict[str, tuple[Model, Replicas]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._add(catalogue)

    def of(self, model: Model) -> Replicas | None:
        found = self._pools.get(model.name)
        return None if found is None else found[1]

    def start(self) -> None:
        """The event loop runs."""
        for _, pool in self._pools.values():
            pool.start()

    def replace(self, catalogue: Catalogue) -> None:
        """Have those of this catalogue; the others let go of what they have under way."""
        wanted = {model.name: model for model in catalogue}
        for name, (model, pool) in list(self._pools.items()):
            if wanted.get(name) != model:
                del self._pools[name]
                task = asyncio.get_running_loop().create_task(pool.retire())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._add(catalogue)
        self.start()

    async def stop(self, grace: float) -> None:
        await asyncio.gather(*(pool.stop(grace) for _, pool in self._pools.values()))

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(
            *(pool.close() for _, pool in self._pools.values()), *self._leaving, return_exceptions=True
        )

    def _add(self, catalogue: Catalogue) -> None:
        for model in catalogue:
            if (model.replicas or model.clustered) and model.name not in self._pools:
                self._pools[model.name] = (model, self._made(model))

    def _made(self, model: Model) -> Replicas:
        if model.clustered:
            return self._connect(model)
        replicas: list[Replica] = []
        members = model.worker_models()
        for name, said in model.replicas:
            if name in members:
                slots = members[name].options.parallel
                replicas.append(LocalReplica(name, members[name].name, self._lifecycle, slots=slots))
            else:
                # Imported here, so that a server without such replicas need not have an HTTP client in memory.
                from paddock.replicas.remote import RemoteReplica

                replicas.append(
                    RemoteReplica(
                        name,
                        said,
                        model.name,
                        deterministic=model.options.deterministic,
                        silence_timeout=model.hang_timeout,
                    )
                )
        return Pool(model.name, replicas, deterministic=model.options.deterministic)

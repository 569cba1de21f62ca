"""The replica sets of the catalogue's models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.lifecycle.local_replica import LocalReplica
from paddock.replicas.replica import Replica, Replicas
from paddock.replicas.replica_set import ReplicaSet


class ReplicaSets:
    """One for each model with replicas. A reload does not touch unchanged models."""

    def __init__(self, catalogue: Catalogue, lifecycle: Lifecycle, connect: Callable[[Model], Replicas]) -> None:
        self._lifecycle = lifecycle
        self._connect = connect
        self._sets: dict[str, tuple[Model, Replicas]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._add(catalogue)

    def of(self, model: Model) -> Replicas | None:
        found = self._sets.get(model.name)
        return None if found is None else found[1]

    def start(self) -> None:
        """Called once the event loop runs."""
        for _, replicas in self._sets.values():
            replicas.start()

    def replace(self, catalogue: Catalogue) -> None:
        """Use the models of this catalogue. Removed sets finish their requests."""
        wanted = {model.name: model for model in catalogue}
        for name, (model, replicas) in list(self._sets.items()):
            if wanted.get(name) != model:
                del self._sets[name]
                task = asyncio.get_running_loop().create_task(replicas.retire())
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        self._add(catalogue)
        self.start()

    async def stop(self, grace: float) -> None:
        await asyncio.gather(*(replicas.stop(grace) for _, replicas in self._sets.values()))

    async def close(self) -> None:
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(
            *(replicas.close() for _, replicas in self._sets.values()), *self._retiring, return_exceptions=True
        )

    def _add(self, catalogue: Catalogue) -> None:
        for model in catalogue:
            if (model.replicas or model.clustered) and model.name not in self._sets:
                self._sets[model.name] = (model, self._create(model))

    def _create(self, model: Model) -> Replicas:
        if model.clustered:
            return self._connect(model)
        replicas: list[Replica] = []
        workers = model.worker_models()
        for name, settings in model.replicas:
            if name in workers:
                slots = workers[name].options.parallel
                replicas.append(LocalReplica(name, workers[name].name, self._lifecycle, slots=slots))
            else:
                # Imported here: without remote replicas the server needs no HTTP client in memory.
                from paddock.replicas.remote import RemoteReplica

                replicas.append(
                    RemoteReplica(
                        name,
                        settings,
                        model.name,
                        deterministic=model.options.deterministic,
                        silence_timeout=model.settings.hang_timeout,
                    )
                )
        return ReplicaSet(model.name, replicas, deterministic=model.options.deterministic)

"""Sends requests from a gateway to the replicas of one model, through a Ray Serve handle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any

import structlog
from ray import serve
from ray.exceptions import RayActorError, RayError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from paddock.cluster.names import ENGINE
from paddock.cluster.replicas import Stream
from paddock.cluster.router_registry import router_of
from paddock.cluster.routing import PrefixRouter, fingerprint_of, name_of
from paddock.errors import NoReplica, PaddockError, QueueFull, ReplicaFailed, ReplicaLost
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.routing import Load

_log = structlog.get_logger(__name__)

REASONS = ("prefix", "load", "new")


class RayLink:
    """Implements `replicas.Link`."""

    def __init__(self, model: str, application: str) -> None:
        self._model = model
        self._application = application
        self._handle = serve.get_deployment_handle(ENGINE, app_name=application)
        self._generate = self._handle.options(method_name="generate", stream=True)

    def generate(self, chain: tuple[int, ...], request: bytes, *, is_batch: bool) -> Stream:
        # Ray gives all calls of an HTTP request its id, and its router never ends the search for a replica if several
        # of them wait at once, as with several prompts. Outside the request's context each call has an id of its own.
        return RayStream(self._model, Context().run(self._generate.remote, chain, request, is_batch))

    async def call(self, method: str, *arguments: Any) -> bytes:
        with translated(self._model):
            answer: bytes = await self._handle.options(method_name=method).remote(*arguments)
            return answer

    async def call_all(self, method: str) -> list[bytes]:
        with translated(self._model):
            answers: list[bytes] = await self._handle.broadcast(method).results_async()
            return answers

    def seen(self) -> list[ReplicaStatus]:
        router: PrefixRouter | None = router_of(self._application)
        if router is None:
            return []
        found, excluded = [], router.excluded()
        for replica in router.replicas():
            name, metadata, stats = name_of(replica), replica.replica_metadata, replica.routing_stats
            running, waiting = int(stats.get("running", 0)), int(stats.get("waiting", 0))
            found.append(
                ReplicaStatus(
                    name,
                    "ray",
                    "ready",
                    "llama.cpp",
                    str(metadata.get("engine", "")),
                    Load(running, waiting, int(metadata.get("slots", 0))),
                    node=replica.node_id or "",
                    pid=int(stats["pid"]) if stats.get("pid") else None,
                    fingerprint=fingerprint_of(replica),
                    excluded="different model, build or flags" if name in excluded else "",
                    failure=str(stats.get("failure", "")),
                    chosen={reason: router.chosen[name, reason] for reason in REASONS},
                    scraped=stats.get("numbers", {}),
                )
            )
        return found

    def held(self, chain: tuple[int, ...]) -> dict[str, int]:
        router: PrefixRouter | None = router_of(self._application)
        return {} if router is None else router.held(chain)


class RayStream:
    """A running response. Implements `replicas.Stream`."""

    def __init__(self, model: str, response: Any) -> None:
        self._model = model
        self._response = response

    def __aiter__(self) -> RayStream:
        return self

    async def __anext__(self) -> bytes:
        with translated(self._model):
            message: bytes = await anext(self._response)
            return message

    def cancel(self) -> None:
        with suppress(RayError, RayServeException):  # a failed send raises again here
            self._response.cancel()


@contextmanager
def translated(model: str) -> Iterator[None]:
    """Translate Ray's errors. Clients see no actors or nodes; the log has them."""
    try:
        yield
    except BackPressureError as error:
        raise QueueFull(f"the queue of {model} is full", retry_after=1) from error
    except DeploymentUnavailableError as error:
        raise NoReplica(f"{model} cannot be deployed on the cluster", retry_after=10) from error
    except TaskCancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise ReplicaLost(f"a replica of {model} cancelled the request", retry_after=1) from error
    except RayActorError as error:
        _log.warning("replica lost", model=model, error=str(error).partition("\n")[0])
        raise ReplicaLost(f"the replica of {model} with this request was lost", retry_after=1) from error
    except (RayError, RayServeException) as error:
        _log.error("replica failed", model=model, error=str(error))
        raise ReplicaFailed(f"a replica of {model} failed; see the server's log", retry_after=1) from error
    except (PaddockError, StopAsyncIteration):
        raise

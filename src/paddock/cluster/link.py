"""From a gateway to the replicas of one model, through a handle of Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from ray import serve
from ray.exceptions import RayActorError, RayError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from paddock.cluster.names import ENGINE
from paddock.cluster.replicas import Stream
from paddock.cluster.routers import router_of
from paddock.cluster.routing import PrefixRouter, fingerprint_of, name_of
from paddock.errors import NoReplica, PaddockError, QueueFull, ReplicaFailed, ReplicaLost
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.routing import Load

_log = structlog.get_logger(__name__)

REASONS = ("prefix", "load", "new")


class RayLink:
    """Implements `clustered.Link`."""

    def __init__(self, model: str, application: str) -> None:
        self._model = model
        self._application = application
        self._handle = serve.get_deployment_handle(ENGINE, app_name=application)
        self._generate = self._handle.options(method_name="generate", stream=True)

    def generate(self, chain: tuple[int, ...], request: bytes) -> Stream:
        return RayStream(self._model, self._generate.remote(chain, request))

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
            name, told, stats = name_of(replica), replica.replica_metadata, replica.routing_stats
            running, waiting = int(stats.get("running", 0)), int(stats.get("waiting", 0))
            found.append(
                ReplicaStatus(
                    name,
                    "ray",
                    "ready",
                    "llama.cpp",
                    str(told.get("engine", "")),
                    Load(running, waiting, int(told.get("slots", 0))),
                    node=replica.node_id or "",
                    pid=int(stats["pid"]) if stats.get("pid") else None,
                    fingerprint=fingerprint_of(replica),
                    excluded="another model, build or flags than the others" if name in excluded else "",
                    failure=str(stats.get("failure", "")),
                    chosen={reason: router.chosen[name, reason] for reason in REASONS},
                    scraped=stats.get("numbers", {}),
                )
            )
        return found


class RayStream:
    """An answer on its way. Implements `clustered.Stream`."""

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
        with suppress(RayError, RayServeException):  # what kept it from being sent is raised here once more
            self._response.cancel()


@contextmanager
def translated(model: str) -> Iterator[None]:
    """Ray's errors in our words. A client is not told of actors and nodes; the log is."""
    try:
        yield
    except BackPressureError as error:
        raise QueueFull(f"too many requests wait for {model}", retry_after=1) from error
    except DeploymentUnavailableError as error:
        raise NoReplica(f"{model} cannot be deployed on the cluster", retry_after=10) from error
    except TaskCancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise ReplicaLost(f"a replica of {model} gave the request up", retry_after=1) from error
    except RayActorError as error:
        _log.warning("replica lost", model=model, error=str(error).partition("\n")[0])
        raise ReplicaLost(f"the replica of {model} that had the request is gone", retry_after=1) from error
    except (RayError, RayServeException) as error:
        _log.error("replica failed", model=model, error=str(error))
        raise ReplicaFailed(f"a replica of {model} failed; the server's log has more", retry_after=1) from error
    except (PaddockError, StopAsyncIteration):
        raise

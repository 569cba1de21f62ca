"""Copies all counters into points of the declared families: fast, on the event loop, without asking workers."""

from __future__ import annotations

import platform
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from paddock import __version__
from paddock.batches import Batches, Runner
from paddock.fleet import Fleet, ModelRecord, ModelStatus, ReplicaStatus, llamacpp_levels, llamacpp_totals
from paddock.gateway.http.request_counts import HTTPCounts
from paddock.gateway.ops.metrics.families import FAMILIES, Family, Kind
from paddock.gateway.ops.metrics.nvml import Gpu
from paddock.gateway.ops.metrics.processes import Processes
from paddock.libraries import find_library
from paddock.logs import dropped_lines
from paddock.tally import Histogram, Levels, Tally, metrics_of
from paddock.types import LibraryInfo

_POOL, _REPLICA = "default", "0"
_HEALTHS = ("ready", "unready", "down")
_STATES = ("unloaded", "loading", "loaded", "unloading")
# Present from the start, so that the first event shows as an increase.
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSEGV", "exit", "hang", "protocol")
_LOAD_FAILURES = ("illegal_instruction", "library_unusable", "model_load_failed", "out_of_memory")
ANONYMOUS: Final = "anonymous"
_LEVELS: Final = metrics_of(Levels)
_TALLY: Final = dict(sorted(metrics_of(Tally).items(), key=lambda item: item[1].label is not None))


@dataclass(frozen=True, slots=True)
class Point:
    family: Family
    labels: tuple[str, ...]
    value: float | Histogram


class Points(list[Point]):
    def put(self, name: str, value: float | Histogram, *labels: str) -> None:
        family = FAMILIES[name]
        assert len(labels) == len(family.labels), f"{name} has the labels {family.labels}"
        self.append(Point(family, labels, value.copy() if isinstance(value, Histogram) else value))

    def put_tally(self, tally: Tally, kind: Kind, worker: tuple[str, ...]) -> None:
        """Put all fields of this kind that declare a metric."""
        for field, metric in _TALLY.items():
            if FAMILIES[metric.name].kind == kind:
                self.put(metric.name, getattr(tally, field), *worker, *(metric.label or ())[1:])


def libraries(fleet: Fleet) -> set[LibraryInfo]:
    """That the workers use or have used."""
    infos = (record.info for name in fleet.records if (record := fleet.records.find(name)) is not None)
    return {info.library for info in infos if info is not None and info.library is not None}


def collect(
    fleet: Fleet,
    http: HTTPCounts,
    processes: Processes,
    gpus: Sequence[Gpu] = (),
    digests: Mapping[LibraryInfo, str] | None = None,
    batches: Batches | None = None,
) -> Points:
    """`digests` has the SHA-256 of each of the `libraries`."""
    points = Points()
    engine = ("llama.cpp", _engine_version())
    statuses = {status.model.name: status for status in fleet.worker_statuses()}
    pools = {status.model.name: status for status in fleet.status() if status.replicas}
    workers = _replica_labels(pools.values())
    # A model that was removed keeps its counters.
    for name in dict.fromkeys([*statuses, *fleet.records]):
        status, found = statuses.get(name), fleet.records.find(name)
        record, worker = found or ModelRecord(), workers.get(name, (name, _POOL, _REPLICA))
        if name not in pools:
            if status is not None:
                _add_levels(points, status, record, worker, engine)
            _add_totals(points, record, worker, engine)
        if found is not None:  # otherwise a large directory would have hundreds of zeros per model
            if name not in pools:
                _add_times(points, record, worker)
                _add_life(points, record, worker)
                if (info := record.info) is not None:
                    known = (info.library.commit if info.library else "", str(info.sampler_profile))
                    points.put("paddock_engine_info", 1, *engine, *worker, *known)
            if name not in workers:
                _add_requests(points, record, _model_labels(name, pools), engine)
    for status in pools.values():
        for replica in status.replicas:
            _add_replica(points, replica, (status.model.name, status.model.name, replica.name))
    for (route, name), count in http.for_models.items():
        points.put("llama_requests_total", count, route, *engine, *_model_labels(name, pools))
    for name, count in http.jobs.items():
        points.put("paddock_jobs_total", count, name)
    _add_processes(points, processes, statuses.values(), workers)
    for device, limit in fleet.rules.memory_limit.items():
        points.put("paddock_memory_limit_bytes", limit, device)
    add_gpus(points, gpus)
    _add_http(points, http)
    if batches is not None and batches.runner is not None:
        _add_batches(points, batches.runner)
    points.put("paddock_build_info", 1, __version__, platform.python_version(), *engine)
    for library, digest in (digests or {}).items():
        identity = (library.version, library.commit, library.build_id, digest)
        points.put("paddock_libllama_info", 1, *identity, library.compiler, ",".join(library.features), library.origin)
    return points


def _replica_labels(pools: Iterable[ModelStatus]) -> dict[str, tuple[str, ...]]:
    """The labels of workers that are replicas, by the name under which each is loaded."""
    return {
        member.name: (status.model.name, status.model.name, replica)
        for status in pools
        for replica, member in status.model.worker_models().items()
    }


def _model_labels(name: str, pools: Container[str]) -> tuple[str, ...]:
    """The labels of metrics of a whole model, for all its replicas."""
    return (name, name, "") if name in pools else (name, _POOL, _REPLICA)


def _add_levels(
    points: Points, status: ModelStatus, record: ModelRecord, worker: tuple[str, ...], engine: tuple[str, ...]
) -> None:
    for name, value in llamacpp_levels(status, record, time.monotonic()).items():
        points.put(name, value, *engine, *worker)
    values = {
        "paddock_slots": status.slots,
        "paddock_prefix_memory_limit_bytes": status.cache_share,
        "paddock_model_waiting_requests": status.waiting,
        **{metric.name: getattr(status.levels, field) for field, metric in _LEVELS.items() if not metric.label},
    }
    labelled = [(metric, getattr(status.levels, field)) for field, metric in _LEVELS.items() if metric.label]
    for name in FAMILIES:
        if name in values:
            points.put(name, values[name], *worker)
        for metric, value in labelled:
            if metric.name == name:
                points.put(name, value, *worker, *(metric.label or ())[1:])
    for state in _STATES:
        points.put("paddock_model_state", status.state == state, *worker, state)
    for device, size in status.needs.items():
        points.put("paddock_model_memory_bytes", size, *worker, device)


def _add_totals(points: Points, record: ModelRecord, worker: tuple[str, ...], engine: tuple[str, ...]) -> None:
    for name, value in llamacpp_totals(record).items():
        points.put(name, value, *engine, *worker)
    points.put_tally(record.tally, "counter", worker)


def _add_times(points: Points, record: ModelRecord, worker: tuple[str, ...]) -> None:
    points.put_tally(record.tally, "histogram", worker)
    points.put("paddock_model_load_seconds", record.load_seconds, *worker)


def _add_requests(points: Points, record: ModelRecord, model: tuple[str, ...], engine: tuple[str, ...]) -> None:
    name = model[0]
    points.put("llama_request_duration_seconds", record.request_seconds, *engine, *model)
    for key, usage in record.keys.items():
        key = key or ANONYMOUS
        for outcome, count in usage.outcomes.items():
            points.put("paddock_requests_total", count, name, key, outcome)
        points.put("paddock_prompt_tokens_total", usage.prompt_tokens, name, key)
        points.put("paddock_cached_prompt_tokens_total", usage.cached_tokens, name, key)
        points.put("paddock_generated_tokens_total", usage.generated_tokens, name, key)
    points.put("paddock_model_wait_seconds", record.wait_seconds, name)
    points.put("paddock_time_to_first_token_seconds", record.first_token_seconds, name)
    points.put("paddock_request_duration_seconds", record.request_seconds, name)


def _add_life(points: Points, record: ModelRecord, worker: tuple[str, ...]) -> None:
    points.put("paddock_model_loads_total", record.loads, *worker)
    points.put("paddock_model_unloads_total", record.unloads, *worker)
    for reason in _with(_CRASHES, record.crashes):
        points.put("paddock_model_crashes_total", record.crashes[reason], *worker, reason)
    for reason in _with(_LOAD_FAILURES, record.load_failures):
        points.put("paddock_model_load_failures_total", record.load_failures[reason], *worker, reason)


def _add_replica(points: Points, status: ReplicaStatus, replica: tuple[str, ...]) -> None:
    for health in _HEALTHS:
        points.put("paddock_replica_health", status.health == health, *replica, health)
    points.put("paddock_replica_drained", status.drained, *replica)
    points.put("paddock_replica_running_requests", status.load.running, *replica)
    points.put("paddock_replica_retries_total", status.retried, *replica)
    for reason, count in status.chosen.items():
        points.put("paddock_replica_requests_total", count, *replica, reason)
    if status.kind == "worker":
        return
    points.put("paddock_replica_tokens_total", status.tokens, *replica)
    for outcome in _with(("ok", "left", "replica_failed"), status.outcomes):
        points.put("paddock_replica_answers_total", status.outcomes.get(outcome, 0), *replica, outcome)
    for name, value in status.scraped.items():
        if name in FAMILIES:  # undeclared names are skipped
            points.put(name, value, status.engine, status.engine_version, *replica)


def _add_processes(
    points: Points,
    processes: Processes,
    statuses: Iterable[ModelStatus],
    workers: Mapping[str, tuple[str, ...]],
) -> None:
    points.put("paddock_memory_available_bytes", processes.available, "host")
    for status in statuses:
        process = processes.workers.get(status.pid or 0)
        if process is not None:
            worker = workers.get(status.model.name, (status.model.name, _POOL, _REPLICA))
            points.put("paddock_worker_resident_memory_bytes", process.resident, *worker)
            points.put("paddock_worker_own_memory_bytes", process.own, *worker)
            points.put("paddock_worker_open_fds", process.open_fds, *worker)


def add_gpus(points: Points, gpus: Sequence[Gpu]) -> None:
    for gpu in gpus:
        labels = (str(gpu.index), gpu.name, gpu.uuid)
        if gpu.utilization is not None:
            points.put("paddock_gpu_utilization_ratio", gpu.utilization, *labels)
        points.put("paddock_gpu_memory_used_bytes", gpu.memory_used, *labels)
        points.put("paddock_gpu_memory_total_bytes", gpu.memory_total, *labels)


def _add_http(points: Points, http: HTTPCounts) -> None:
    for (method, route, status), count in http.requests.items():
        points.put("paddock_http_requests_total", count, method, route, str(status))
    for route, seconds in http.seconds.items():
        points.put("paddock_http_request_duration_seconds", seconds, route)
    points.put("paddock_http_requests_in_progress", http.in_progress)
    points.put("paddock_http_streams", http.streams)
    points.put("paddock_log_lines_dropped_total", dropped_lines())
    points.put("paddock_http_connections", len(http.connections))
    points.put("paddock_http_buffered_body_bytes", http.bodies.held if http.bodies is not None else 0)
    if (buffers := http.stream_buffers) is not None:
        points.put("paddock_stream_buffers", buffers.count)
        points.put("paddock_stream_buffer_bytes", buffers.held)
        points.put("paddock_stream_resumes_total", buffers.resumed)
    if (tools := http.tools) is not None:
        for (server, key, outcome), count in tools.calls.items():
            points.put("paddock_mcp_calls_total", count, server, key or ANONYMOUS, outcome)
        for server, seconds in tools.seconds.items():
            points.put("paddock_mcp_call_duration_seconds", seconds, server)


def _add_batches(points: Points, runner: Runner) -> None:
    for status, count in runner.statuses().items():
        points.put("paddock_batches", count, status)
    for model, (waiting, running) in runner.levels().items():
        points.put("paddock_batch_lines", waiting, model, "waiting")
        points.put("paddock_batch_lines", running, model, "running")
    counts = runner.counts
    for model in counts.tokens:
        points.put("paddock_batch_results_total", counts.done.get(model, 0), model, "done")
        points.put("paddock_batch_results_total", counts.failed.get(model, 0), model, "failed")
        usage = counts.tokens[model]
        for kind, tokens in (("prompt", usage.input), ("cached", usage.cached), ("generated", usage.output)):
            points.put("paddock_batch_tokens_total", tokens, model, kind)


def _with(known: tuple[str, ...], found: Mapping[str, int]) -> list[str]:
    return list(dict.fromkeys([*known, *found]))


@cache
def _engine_version() -> str:
    """The version of the package whose libllama workers use. Known without loading it."""
    found = find_library()
    try:
        return version(found.origin) if found is not None else "unknown"
    except PackageNotFoundError:  # it is from the system, or built here
        return "unknown"

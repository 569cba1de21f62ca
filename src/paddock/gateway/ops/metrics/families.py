"""Every metric: those of workers are declared in `tally.py`. docs/reference/metrics.md is generated from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_type_hints

from paddock.tally import Histogram, Levels, Tally, metrics_of

Kind = Literal["counter", "gauge", "histogram"]

_REQUEST: Final = ("model_id",)
_WORKER: Final = ("model_id", "pool", "replica")
_GPU: Final = ("gpu", "name", "uuid")
_ENGINE: Final = ("engine", "engine_version", *_WORKER)


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    about: str
    families: tuple[Family, ...]


def _counter(name: str, help: str, *labels: str) -> Family:
    return Family(name, "counter", help, labels)


def _gauge(name: str, help: str, *labels: str) -> Family:
    return Family(name, "gauge", help, labels)


def _histogram(name: str, help: str, *labels: str) -> Family:
    return Family(name, "histogram", help, labels)


def worker_families(struct: type[Tally | Levels], section: str) -> list[Family]:
    """The families of this section that are declared by the fields of a struct (`tally.py`)."""
    hints = get_type_hints(struct)
    found: dict[str, Family] = {}
    for field, metric in metrics_of(struct).items():
        if metric.section == section:
            counted: Kind = "histogram" if hints[field] is Histogram else "counter"
            labels = _WORKER if metric.label is None else (*_WORKER, metric.label[0])
            found[metric.name] = Family(
                metric.name, "gauge" if issubclass(struct, Levels) else counted, metric.help, labels
            )
    return list(found.values())


_prefix_bytes, *_prefix_gauges = worker_families(Levels, "Prefixes")

SECTIONS: Final = (
    Section(
        "llama-server",
        "The names and meanings of llama-server, and two that it had in the past (`kv_cache_*`).",
        (
            _counter("llamacpp:prompt_tokens_total", "Prompt tokens computed, without cached ones.", *_ENGINE),
            _counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens reused from the cache.", *_ENGINE),
            _counter("llamacpp:prompt_seconds_total", "Time spent on prompts.", *_ENGINE),
            _counter("llamacpp:tokens_predicted_total", "Tokens generated.", *_ENGINE),
            _counter("llamacpp:tokens_predicted_seconds_total", "Time spent on answers.", *_ENGINE),
            _counter("llamacpp:n_decode_total", "Calls of llama_decode.", *_ENGINE),
            _gauge("llamacpp:n_tokens_max", "The longest sequence so far, prompt and answer.", *_ENGINE),
            _counter(
                "llamacpp:spec_decode_num_draft_tokens_total",
                "Guessed tokens, of a draft model or other sources.",
                *_ENGINE,
            ),
            _counter(
                "llamacpp:spec_decode_num_accepted_tokens_total", "Guessed tokens that the model chose too.", *_ENGINE
            ),
            _counter("llamacpp:spec_decode_num_drafts_total", "Steps of answers with guessed tokens.", *_ENGINE),
            _gauge(
                "llamacpp:prompt_tokens_seconds",
                "Prompt tokens per second of a request, average of the last minute.",
                *_ENGINE,
            ),
            _gauge(
                "llamacpp:predicted_tokens_seconds",
                "Generated tokens per second of a request, average of the last minute.",
                *_ENGINE,
            ),
            _gauge("llamacpp:requests_processing", "Requests being processed.", *_ENGINE),
            _gauge("llamacpp:requests_deferred", "Requests that wait for a slot or for the model.", *_ENGINE),
            _gauge("llamacpp:n_busy_slots_per_decode", "Average number of slots in use per step.", *_ENGINE),
            _gauge("llamacpp:kv_cache_usage_ratio", "Share of the cache's cells in use.", *_ENGINE),
            _gauge("llamacpp:kv_cache_tokens", "Tokens in the cache's cells.", *_ENGINE),
        ),
    ),
    Section(
        "Short names",
        "The same figures under the names of other documents about llama-server.",
        (
            _counter("llama_requests_total", "Requests to this model.", "endpoint", *_ENGINE),
            _histogram("llama_request_duration_seconds", "Time from the arrival of a request to its end.", *_ENGINE),
            _counter("llama_tokens_generated_total", "Tokens generated.", *_ENGINE),
            _gauge("llama_slots_processing", "Slots in use.", *_ENGINE),
        ),
    ),
    Section(
        "Requests",
        "Counted by the gateway. A request with several prompts counts once per prompt. `key` is the name of an API "
        "key, or `anonymous`; `outcome` is `ok`, `left` (the client disconnected) or the code of an error.",
        (
            _counter(
                "paddock_requests_total",
                "Generations, embeddings and rerankings that ended.",
                "model_id",
                "key",
                "outcome",
            ),
            _counter(
                "paddock_prompt_tokens_total", "Prompt tokens of these requests, cached or not.", "model_id", "key"
            ),
            _counter(
                "paddock_cached_prompt_tokens_total", "Cached prompt tokens of these requests.", "model_id", "key"
            ),
            _counter(
                "paddock_generated_tokens_total",
                "Tokens generated for these requests, also for answers that were cancelled.",
                "model_id",
                "key",
            ),
            _counter("paddock_jobs_total", "Requests with a job id.", "model_id"),
            _histogram(
                "paddock_model_wait_seconds", "Time from the arrival of a request until its model is loaded.", *_REQUEST
            ),
            _histogram(
                "paddock_time_to_first_token_seconds",
                "Time from the arrival of a request to its first token, including loading and waiting.",
                *_REQUEST,
            ),
            _histogram("paddock_request_duration_seconds", "Time from the arrival of a request to its end.", *_REQUEST),
        ),
    ),
    Section(
        "Batches",
        "Lines of batches are also counted as requests of their key, above: what is left there is interactive. `state` "
        "is `waiting` or `running`, `outcome` is `done` or `failed` (in the error file). Counted since the start of "
        "the server.",
        (
            _gauge("paddock_batches", "Batches that have not ended.", "status"),
            _gauge("paddock_batch_lines", "Unanswered lines of running batches.", "model_id", "state"),
            _counter("paddock_batch_results_total", "Lines with a result.", "model_id", "outcome"),
            _counter(
                "paddock_batch_tokens_total",
                "Tokens of answered lines. `kind` is `prompt` (cached or not), `cached` or `generated`.",
                "model_id",
                "kind",
            ),
        ),
    ),
    Section(
        "Steps",
        "Counted by the workers and sent once a second. `pool` and `replica` are `default` and `0` if one worker "
        "serves a model, otherwise the names of the model and the replica.",
        (
            *worker_families(Tally, "Steps"),
            _gauge("paddock_slots", "Requests that can run at once.", *_WORKER),
            *worker_families(Levels, "Steps"),
        ),
    ),
    Section(
        "Prefixes",
        "The prefix cache.",
        (
            *worker_families(Tally, "Prefixes"),
            _prefix_bytes,
            _gauge(
                "paddock_prefix_memory_limit_bytes",
                "Limit of the host memory for prefixes: the worker's share of `cache_ram`.",
                *_WORKER,
            ),
            *_prefix_gauges,
        ),
    ),
    Section(
        "Models",
        "`state` is `unloaded`, `loading`, `loaded` or `unloading`, of which one is 1. Crashes are counted by the "
        "signal that ended the worker, or `exit`, `hang` or `protocol`; failed loads by their error code.",
        (
            _gauge("paddock_model_state", "Whether a model is in this state.", *_WORKER, "state"),
            _gauge("paddock_model_waiting_requests", "Requests that wait for the model to be loaded.", *_WORKER),
            _counter("paddock_model_loads_total", "Loads of the model.", *_WORKER),
            _counter("paddock_model_load_failures_total", "Failed loads of the model.", *_WORKER, "reason"),
            _counter("paddock_model_unloads_total", "Unloads of the model.", *_WORKER),
            _counter("paddock_model_crashes_total", "Crashes of the worker.", *_WORKER, "reason"),
            _histogram("paddock_model_load_seconds", "Time of a load.", *_WORKER),
            _gauge(
                "paddock_model_memory_bytes",
                "Memory of the model: estimated, corrected by measurements, including prefixes in host memory.",
                *_WORKER,
                "device",
            ),
            _gauge(
                "paddock_worker_resident_memory_bytes",
                "Resident memory of the worker, including mapped files.",
                *_WORKER,
            ),
            _gauge("paddock_worker_own_memory_bytes", "Resident memory of the worker without mapped files.", *_WORKER),
            _gauge("paddock_worker_open_fds", "Open file descriptors of the worker.", *_WORKER),
            *worker_families(Tally, "Models"),
            _gauge("paddock_memory_limit_bytes", "Memory limit of all models together, where one is set.", "device"),
            _gauge("paddock_memory_available_bytes", "Memory that can be allocated without swapping.", "device"),
        ),
    ),
    Section(
        "GPUs",
        "Every NVIDIA GPU that the driver reports, whatever process uses it. Absent without an NVIDIA driver. Sampled "
        "on a scrape, at most once a second. `gpu` is its number, `name` its model.",
        (
            _gauge("paddock_gpu_utilization_ratio", "Utilisation, from 0 to 1.", *_GPU),
            _gauge("paddock_gpu_memory_used_bytes", "Memory used by all processes.", *_GPU),
            _gauge("paddock_gpu_memory_total_bytes", "Total memory.", *_GPU),
        ),
    ),
    Section(
        "Replicas",
        "Models with several replicas. `health` is `ready`, `unready` (loading) or `down`; one of them is 1. "
        "A request goes to a replica that likely has its `prefix` cached, to another because of the `load`, or is "
        "`new` to all; a `retry` goes to the one that crashed. The metrics of a remote server are in the "
        "section of llama-server, with its labels.",
        (
            _gauge("paddock_replica_health", "Whether the replica has this health.", *_WORKER, "health"),
            _gauge("paddock_replica_drained", "Whether the replica is drained.", *_WORKER),
            _gauge(
                "paddock_replica_running_requests",
                "Running requests of the replica, as known to this server.",
                *_WORKER,
            ),
            _counter("paddock_replica_requests_total", "Requests sent to the replica, by reason.", *_WORKER, "reason"),
            _counter(
                "paddock_replica_retries_total",
                "Requests that failed on the replica before any output and were sent to another.",
                *_WORKER,
            ),
            _counter("paddock_replica_tokens_total", "Tokens from a remote replica.", *_WORKER),
            _counter(
                "paddock_replica_answers_total",
                "Requests to a remote replica that ended, by outcome as in `paddock_requests_total`.",
                *_WORKER,
                "outcome",
            ),
        ),
    ),
    Section(
        "HTTP",
        "`route` is a route's template, `other` for pages of documentation, `unknown` for paths that do not exist; "
        "`status` is 499 if the client disconnected before the response.",
        (
            _counter("paddock_http_requests_total", "HTTP requests that ended.", "method", "route", "status"),
            _histogram(
                "paddock_http_request_duration_seconds",
                "Time from the first byte of the request to the last of the response.",
                "route",
            ),
            _gauge("paddock_http_requests_in_progress", "HTTP requests in progress."),
            _gauge("paddock_http_streams", "HTTP requests in progress that are answered by a stream."),
            _gauge("paddock_http_connections", "Open connections."),
            _counter("paddock_log_lines_dropped_total", "Log lines dropped because the log was not read fast enough."),
            _gauge("paddock_http_buffered_body_bytes", "Bytes of request bodies that are held in memory."),
            _gauge("paddock_stream_buffers", "Streams that `GET /v1/stream` can resume."),
            _gauge("paddock_stream_buffer_bytes", "Bytes of these streams that are held in memory."),
            _counter("paddock_stream_resumes_total", "Streams that were resumed."),
        ),
    ),
    Section(
        "MCP servers",
        "Calls of tools. `outcome` is `ok`, `tool_error` (the tool reports an error), `left` (the client disconnected) "
        "or the code of an error.",
        (
            _counter("paddock_mcp_calls_total", "Calls of tools that ended.", "server", "key", "outcome"),
            _histogram("paddock_mcp_call_duration_seconds", "Time of a call.", "server"),
        ),
    ),
    Section(
        "The server",
        "The standard `process_*` metrics of the gateway process are exported too. On a cluster a scrape covers all "
        "gateways: what each counts itself, here and above, has the additional label `gateway`.",
        (
            _gauge("paddock_build_info", "Always 1.", "version", "python", "engine", "engine_version"),
            _gauge(
                "paddock_engine_info",
                "Always 1, for each model that was loaded: its engine, and the version of the samplers.",
                *_ENGINE,
                "llama_cpp_commit",
                "sampler_profile",
            ),
            _gauge(
                "paddock_libllama_info",
                "Always 1, for each libllama that a worker has loaded. `build_id` differs between any two builds.",
                "version",
                "commit",
                "build_id",
                "sha256",
                "compiler",
                "features",
                "origin",
            ),
        ),
    ),
)

FAMILIES: Final = {family.name: family for section in SECTIONS for family in section.families}

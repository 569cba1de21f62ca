"""Every metric there is. docs/reference/metrics.md is made of this table, and nothing else is ever shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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


SECTIONS: Final = (
    Section(
        "llama-server's",
        "The names and meanings that llama-server has, and two that it had (`kv_cache_*`).",
        (
            _counter("llamacpp:prompt_tokens_total", "Prompt tokens processed, without those known already.", *_ENGINE),
            _counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens reused from the cache.", *_ENGINE),
            _counter("llamacpp:prompt_seconds_total", "Time that requests' prompts took.", *_ENGINE),
            _counter("llamacpp:tokens_predicted_total", "Tokens generated.", *_ENGINE),
            _counter("llamacpp:tokens_predicted_seconds_total", "Time that requests' answers took.", *_ENGINE),
            _counter("llamacpp:n_decode_total", "Calls of llama_decode, or of what takes its place.", *_ENGINE),
            _gauge("llamacpp:n_tokens_max", "The longest sequence so far, prompt and answer.", *_ENGINE),
            _counter("llamacpp:spec_decode_num_draft_tokens_total", "Tokens that a draft model guessed.", *_ENGINE),
            _counter("llamacpp:spec_decode_num_accepted_tokens_total", "Guessed tokens that were right.", *_ENGINE),
            _counter("llamacpp:spec_decode_num_drafts_total", "Times that an answer was guessed ahead.", *_ENGINE),
            _gauge(
                "llamacpp:prompt_tokens_seconds",
                "Prompt tokens a second of a request, on average over the last minute.",
                *_ENGINE,
            ),
            _gauge(
                "llamacpp:predicted_tokens_seconds",
                "Tokens generated a second for a request, on average over the last minute.",
                *_ENGINE,
            ),
            _gauge("llamacpp:requests_processing", "Requests being processed.", *_ENGINE),
            _gauge("llamacpp:requests_deferred", "Requests that wait, for a slot or for the model.", *_ENGINE),
            _gauge("llamacpp:n_busy_slots_per_decode", "Slots in use per step, on average.", *_ENGINE),
            _gauge("llamacpp:kv_cache_usage_ratio", "Share of the cache's cells in use.", *_ENGINE),
            _gauge("llamacpp:kv_cache_tokens", "Tokens in the cache's cells.", *_ENGINE),
        ),
    ),
    Section(
        "By their short names",
        "The same, as documents about llama-server's architecture have it.",
        (
            _counter("llama_requests_total", "Requests that named, or meant, this model.", "endpoint", *_ENGINE),
            _histogram("llama_request_duration_seconds", "From a request's arrival to its end.", *_ENGINE),
            _counter("llama_tokens_generated_total", "Tokens generated.", *_ENGINE),
            _gauge("llama_slots_processing", "Slots in use.", *_ENGINE),
        ),
    ),
    Section(
        "Requests",
        "As the gateway saw them. A request with several prompts counts for each of them. `key` is the name of an API "
        "key, or `anonymous`; `outcome` is `ok`, `left` (the client did not wait for the end) or the code of an error.",
        (
            _counter(
                "paddock_requests_total",
                "Generations, embeddings and rankings that ended.",
                "model_id",
                "key",
                "outcome",
            ),
            _counter("paddock_prompt_tokens_total", "Prompt tokens of these, known before or not.", "model_id", "key"),
            _counter("paddock_cached_prompt_tokens_total", "Those of them that were known.", "model_id", "key"),
            _counter(
                "paddock_generated_tokens_total",
                "Tokens generated for these; of answers that were broken off, those that were heard of.",
                "model_id",
                "key",
            ),
            _counter("paddock_jobs_total", "Requests that named a job which they are part of.", "model_id"),
            _histogram("paddock_model_wait_seconds", "From a request's arrival until its model was there.", *_REQUEST),
            _histogram(
                "paddock_time_to_first_token_seconds",
                "From a request's arrival to the first of its answer, loading and waiting included.",
                *_REQUEST,
            ),
            _histogram("paddock_request_duration_seconds", "From a request's arrival to its end.", *_REQUEST),
        ),
    ),
    Section(
        "Steps",
        "As the workers counted them; told about once a second. `pool` and `replica` are `default` and `0` where one "
        "worker serves a model, and else the model's and the replica's name.",
        (
            _histogram("paddock_queue_seconds", "From when a request was accepted to its first step.", *_WORKER),
            _histogram("paddock_inter_token_seconds", "Between two tokens of an answer.", *_WORKER),
            _histogram(
                "paddock_step_duration_seconds", "Time of a step, waiting for its turn on the CPU included.", *_WORKER
            ),
            _histogram("paddock_step_sequences", "Requests that shared a step.", *_WORKER),
            _histogram("paddock_step_tokens", "Tokens in a step, of prompts and answers.", *_WORKER),
            _counter("paddock_preemptions_total", "Requests that had to step back for want of cells.", *_WORKER),
            _gauge("paddock_slots", "Requests that can run at once.", *_WORKER),
            _gauge("paddock_running_requests", "Requests in a slot, after the last step.", *_WORKER),
            _gauge("paddock_queued_requests", "Requests without one, after the last step.", *_WORKER),
        ),
    ),
    Section(
        "Prefixes",
        "What need not be computed again.",
        (
            _counter(
                "paddock_prefix_tokens_total",
                "Prompt tokens by where they came from: `reused` or `computed`.",
                *_WORKER,
                "source",
            ),
            _counter(
                "paddock_prefix_lookups_total",
                "Requests by whether a beginning of their prompt was known: `hit` or `miss`.",
                *_WORKER,
                "result",
            ),
            _counter("paddock_prefix_evictions_total", "Prefixes dropped from host memory for others.", *_WORKER),
            _gauge("paddock_prefix_memory_bytes", "Host memory that prefixes take.", *_WORKER),
            _gauge(
                "paddock_prefix_memory_limit_bytes",
                "Host memory that prefixes may take: the worker's share of `cache_ram`.",
                *_WORKER,
            ),
            _gauge("paddock_prefix_memory_tokens", "Tokens of the prefixes there.", *_WORKER),
            _gauge("paddock_cache_cells", "Cells of the cache.", *_WORKER),
            _gauge("paddock_cache_cells_used", "Those in use.", *_WORKER),
        ),
    ),
    Section(
        "Models",
        "`state` is `unloaded`, `loading`, `loaded` or `unloading`, of which one is 1. Crashes are counted by the "
        "signal that ended the worker, or `exit`, `hang` or `protocol`; failed loads by the code of their error.",
        (
            _gauge("paddock_model_state", "Whether a model is in this state.", *_WORKER, "state"),
            _gauge("paddock_model_waiting_requests", "Requests that wait for the model to be loaded.", *_WORKER),
            _counter("paddock_model_loads_total", "Times that it was loaded.", *_WORKER),
            _counter("paddock_model_load_failures_total", "Times that it could not be.", *_WORKER, "reason"),
            _counter("paddock_model_unloads_total", "Times that it left.", *_WORKER),
            _counter("paddock_model_crashes_total", "Times that its worker ended by itself.", *_WORKER, "reason"),
            _histogram("paddock_model_load_seconds", "Time of a load.", *_WORKER),
            _gauge(
                "paddock_model_memory_bytes",
                "What it takes: estimated, corrected by what was seen, and with its prefixes in host memory.",
                *_WORKER,
                "device",
            ),
            _gauge(
                "paddock_worker_resident_memory_bytes",
                "What its process has in memory, mapped files included.",
                *_WORKER,
            ),
            _gauge("paddock_worker_own_memory_bytes", "The same without pages of files.", *_WORKER),
            _gauge("paddock_worker_open_fds", "File descriptors its process has open.", *_WORKER),
            _counter("paddock_worker_cpu_seconds_total", "CPU time of its processes.", *_WORKER),
            _gauge("paddock_memory_limit_bytes", "What all models together may take, where a limit is set.", "device"),
            _gauge("paddock_memory_available_bytes", "What could be allocated without swapping.", "device"),
        ),
    ),
    Section(
        "GPUs",
        "Of every NVIDIA GPU that the driver shows, whoever uses it. Absent where there is no NVIDIA driver. Sampled "
        "when scraped, at most once a second. `gpu` is its number, `name` its model.",
        (
            _gauge(
                "paddock_gpu_utilization_ratio", "Share of the last moments in which it computed, from 0 to 1.", *_GPU
            ),
            _gauge("paddock_gpu_memory_used_bytes", "Memory in use, by all processes.", *_GPU),
            _gauge("paddock_gpu_memory_total_bytes", "Memory that it has.", *_GPU),
        ),
    ),
    Section(
        "Replicas",
        "Of models that several serve together. `health` is `ready`, `unready` (loading) or `down`; one of them is 1. "
        "A request is sent to a replica that likely holds its `prefix`, to another because of the `load`, or is `new` "
        "to all; a `retry` goes to the one that crashed. What a server elsewhere counts itself is among llama-server's "
        "metrics, with its labels.",
        (
            _gauge("paddock_replica_health", "Whether a replica is so.", *_WORKER, "health"),
            _gauge("paddock_replica_drained", "Whether it gets nothing new.", *_WORKER),
            _gauge("paddock_replica_running_requests", "Requests it has, as far as is known here.", *_WORKER),
            _counter("paddock_replica_requests_total", "Requests sent to it, by the reason.", *_WORKER, "reason"),
            _counter(
                "paddock_replica_retries_total",
                "Those that failed there before anything was told, so that another one was asked.",
                *_WORKER,
            ),
            _counter("paddock_replica_tokens_total", "Tokens that came from a server elsewhere.", *_WORKER),
            _counter(
                "paddock_replica_answers_total",
                "Requests to a server elsewhere that ended, by their outcome, as of `paddock_requests_total`.",
                *_WORKER,
                "outcome",
            ),
        ),
    ),
    Section(
        "HTTP",
        "`route` is a route's template, `other` for what only exists as documentation, `unknown` for paths that do not "
        "exist; the `status` is 499 where the client left before there was one.",
        (
            _counter("paddock_http_requests_total", "HTTP requests that ended.", "method", "route", "status"),
            _histogram("paddock_http_request_duration_seconds", "From the first byte to the last.", "route"),
            _gauge("paddock_http_requests_in_progress", "HTTP requests under way."),
            _gauge("paddock_http_streams", "Those of them that are answered by a stream of events."),
            _gauge("paddock_http_connections", "Open connections."),
            _counter("paddock_log_lines_dropped_total", "Log lines that were dropped because nobody read the log."),
            _gauge("paddock_http_buffered_body_bytes", "Bytes of request bodies that are held in memory."),
        ),
    ),
    Section(
        "The server",
        "Beside it there are the usual `process_*` of the gateway's own process. On a cluster the page shows all "
        "gateways: what each counts for itself, here and above, has one more label, `gateway`.",
        (
            _gauge("paddock_build_info", "Always 1.", "version", "python", "engine", "engine_version"),
            _gauge(
                "paddock_engine_info",
                "Always 1, for each model that was loaded: what computes it, and the version of the samplers.",
                *_ENGINE,
                "llama_cpp_commit",
                "sampler_profile",
            ),
        ),
    ),
)

FAMILIES: Final = {family.name: family for section in SECTIONS for family in section.families}

"""The error classes. Each has an HTTP status and a code, and `body` renders all of them.

Errors cross the process boundary by `code` (see `wire.messages.Problem`), so every concrete class has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""OpenAI's error types by status. Other statuses have `invalid_request_error`."""


class PaddockError(Exception):
    """An error inside the server, or the base of all errors that a client or an operator sees."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = _TYPES[500]
    code: ClassVar[str] = "internal_error"

    def __init_subclass__(cls) -> None:
        """Set the type by the status, unless the class declares its own."""
        if "type" not in vars(cls):
            cls.type = _TYPES.get(cls.status, "invalid_request_error")

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        """`numbers` are further fields of the error object."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.numbers = dict(numbers or {})

    def body(self) -> dict[str, dict[str, str | int | None]]:
        shown = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**shown, **self.numbers}}

    @staticmethod
    def from_code(
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> PaddockError:
        """Rebuild an error that another process sent. An unknown code becomes an internal error."""
        kind = _by_code().get(code, PaddockError)
        return kind(message, param=param, retry_after=retry_after, numbers=numbers)


class StartupError(PaddockError):
    """The server cannot start as configured, or a command failed. Never sent over HTTP."""

    code = "startup_failed"


class SettingsError(StartupError):
    """A setting is unknown or has an invalid value."""

    code = "invalid_settings"


class PullFailed(StartupError):
    """A model could not be downloaded from the hub."""

    code = "pull_failed"


class HubUnreachable(PullFailed):
    """The hub cannot be reached."""

    code = "hub_unreachable"


# ── errors of the client ──────────────────────────────────────────────────────────────────────────────────────────────


class InvalidRequest(PaddockError):
    """The request has an invalid value, or values that contradict each other."""

    status = 400
    code = "invalid_request"


class ModelNotLoaded(InvalidRequest):
    """The model is not loaded, and requests do not load it (`autoload`)."""

    code = "model_not_loaded"


class InvalidJSON(InvalidRequest):
    """The body is not valid JSON."""

    code = "invalid_json"


class UnsupportedParameter(InvalidRequest):
    """A known parameter cannot be honoured. It is refused because ignoring it would change the answer."""

    code = "unsupported_parameter"


class ConstraintFailed(InvalidRequest):
    """A schema or grammar cannot be satisfied any further while the answer is generated."""

    code = "constraint_failed"


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the model's context. The error object has both numbers, `n_prompt_tokens` and `n_ctx`."""

    type = "exceed_context_size_error"
    code = "context_length_exceeded"


class TemplateRefused(InvalidRequest):
    """The model's chat template raised an error for these messages, such as an unknown role."""

    code = "template_error"


class ReadTooSlowly(PaddockError):
    """The client reads a stream more slowly than the server may buffer it."""

    status = 408
    code = "read_too_slowly"


class RequestTimeout(PaddockError):
    """The client did not send its request completely in time."""

    status = 408
    code = "request_timeout"


class ClientLeft(PaddockError):
    """The client disconnected before it had the response. Nobody receives this, but the log and the metrics have it."""

    status = 499
    code = "client_left"


class AuthenticationError(PaddockError):
    """The request has no key, or an unknown or expired one."""

    status = 401
    code = "invalid_api_key"


class TooManyFailures(PaddockError):
    """One address sent too many wrong keys."""

    status = 429
    type = "authentication_error"
    code = "too_many_failed_keys"


class PermissionDenied(PaddockError):
    """The key is valid, but does not allow this request."""

    status = 403
    code = "permission_denied"


class FeatureDisabled(PaddockError):
    """A feature of llama-server that this server does not offer, such as its built-in tools."""

    status = 403
    type = "feature_disabled"
    code = "feature_disabled"


class HostNotAllowed(PaddockError):
    """The Host header is not a name of this server, as in a DNS rebinding attack."""

    status = 403
    code = "host_not_allowed"


class OriginNotAllowed(PaddockError):
    """The request comes from a web page of another origin."""

    status = 403
    code = "origin_not_allowed"


class NotFound(PaddockError):
    """The route or the object does not exist."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No model has this name, or the key may not use it."""

    type = "invalid_request_error"
    code = "model_not_found"


class McpServerNotFound(NotFound):
    """No MCP server has this name."""

    type = "invalid_request_error"
    code = "mcp_server_not_found"


class MethodNotAllowed(PaddockError):
    """The route exists, but not with this method."""

    status = 405
    code = "method_not_allowed"


class RateLimitExceeded(PaddockError):
    """A key has reached one of its limits."""

    status = 429
    code = "rate_limit_exceeded"


class RequestTooLarge(PaddockError):
    """The body is larger than `server.max_body_bytes`."""

    status = 413
    code = "request_too_large"


class URITooLong(PaddockError):
    """The URL is longer than `server.max_url_bytes`."""

    status = 414
    code = "uri_too_long"


class HeadersTooLarge(PaddockError):
    """The headers exceed `server.max_header_bytes` or `server.max_header_count`."""

    status = 431
    code = "headers_too_large"


class QuotaExceeded(PaddockError):
    """A key has as many files, bytes or waiting requests of batches as it may have."""

    status = 403
    code = "quota_exceeded"


class NotSupported(PaddockError):
    """This server or this model does not support the operation."""

    status = 501
    code = "not_supported"


# ── errors of the server ──────────────────────────────────────────────────────────────────────────────────────────────


class Unavailable(PaddockError):
    """The server cannot answer now. Retry later."""

    status = 503
    code = "unavailable"


class TooManyConnections(Unavailable):
    """The server has as many connections as it allows."""

    code = "too_many_connections"


class BatchesUnavailable(Unavailable):
    """Files and batches cannot be used: another server uses the data folder, or it cannot be opened."""

    code = "batches_unavailable"


class StorageFull(PaddockError):
    """The disk of the data folder is full, or cannot be written."""

    status = 507
    code = "storage_full"


class BuffersFull(Unavailable):
    """The bodies of other requests use all the memory that is reserved for bodies."""

    code = "buffers_full"


class QueueFull(PaddockError):
    """The queue of the model is full (`max_queue`)."""

    status = 429
    code = "queue_full"


class DecodeFailed(PaddockError):
    """libllama could not compute a step. The cache may be inconsistent, so the worker exits."""

    code = "decode_failed"


class SamplingFailed(PaddockError):
    """An exception while a token of this request was chosen. The worker and its other requests continue."""

    code = "sampling_failed"


class NoCells(DecodeFailed):
    """The cache has no room for a step. Nothing was computed, so the step is planned again with fewer requests."""

    code = "no_cells"


class ModelLoading(Unavailable):
    """The model is still loading (`/health` only)."""

    code = "model_loading"


class ModelLoadFailed(Unavailable):
    """The model could not be loaded."""

    code = "model_load_failed"


class InsufficientMemory(Unavailable):
    """The model cannot fit into memory beside the models that must stay loaded."""

    code = "insufficient_memory"


class ModelUnloaded(Unavailable):
    """The model was unloaded or removed while the request waited for it."""

    code = "model_unloaded"


class ReceiptUnavailable(Unavailable):
    """The hash of a model's file cannot be given, because the file was changed or removed after it was loaded."""

    code = "receipt_unavailable"


class ModelCrashing(Unavailable):
    """The model has crashed repeatedly and is not loaded again for a while."""

    code = "model_crashing"


class IllegalInstruction(ModelLoadFailed):
    """libllama was compiled for instructions that this CPU does not have. A load without them may succeed."""

    code = "illegal_instruction"


class LibraryUnusable(ModelLoadFailed):
    """There is no libllama, or it cannot be used: the message says which file, why, and what to do."""

    code = "library_unusable"


class OutOfMemory(ModelLoadFailed):
    """Memory ran out during the load. A load may succeed when other models are unloaded."""

    code = "out_of_memory"


class WorkerCrashed(Unavailable):
    """The worker process ended while it served the request."""

    code = "worker_crashed"
    requests: int = 0
    """How many requests the worker had; 0 if unknown."""


class ReplicaLost(WorkerCrashed):
    """The connection to a replica broke in the middle of an answer."""

    code = "replica_lost"


class ReplicaFailed(Unavailable):
    """A replica refused the request or sent a response that cannot be read."""

    code = "replica_failed"


class ReplicaUnreachable(ReplicaFailed):
    """A replica cannot be reached."""

    code = "replica_unreachable"


class NoReplica(Unavailable):
    """No replica of the model can be used now."""

    code = "no_replica"


class McpServerFailed(Unavailable):
    """An MCP server answered with an error, or with something that cannot be read."""

    code = "mcp_server_failed"


class McpServerUnreachable(McpServerFailed):
    """An MCP server cannot be reached."""

    code = "mcp_server_unreachable"


class McpServerTimeout(McpServerFailed):
    """An MCP server took longer than its `timeout`."""

    code = "mcp_server_timeout"


class ServerStopping(Unavailable):
    """The server is shutting down."""

    code = "server_stopping"


def _by_code() -> dict[str, type[PaddockError]]:
    found: dict[str, type[PaddockError]] = {}
    pending: list[type[PaddockError]] = [PaddockError]
    while pending:
        cls = pending.pop()
        found.setdefault(cls.code, cls)
        pending.extend(cls.__subclasses__())
    return found

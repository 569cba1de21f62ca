"""The one error tree. Each class owns its HTTP status, OpenAI error type and code; one renderer turns any into a body.

Errors cross the process boundary by `code` (see `wire.messages.Problem`), so every concrete class has its own.
"""

from __future__ import annotations

from typing import ClassVar


class PaddockError(Exception):
    """Something a client or an operator can be told about in one line."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @staticmethod
    def from_code(
        code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> PaddockError:
        """The error that was sent by another process; an unknown code is a bug of ours."""
        return _by_code().get(code, PaddockError)(message, param=param, retry_after=retry_after)


class StartupError(PaddockError):
    """The server cannot start as configured. Shown to the operator as one line; never sent over HTTP."""

    code = "startup_failed"


class SettingsError(StartupError):
    code = "invalid_settings"


class PullFailed(StartupError):
    """A model could not be had from the hub."""

    code = "pull_failed"


class HubUnreachable(PullFailed):
    """Nor could be said whether there is one."""

    code = "hub_unreachable"


# ── the client's doing ───────────────────────────────────────────────────────────────────────────────────────────────


class InvalidRequest(PaddockError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidJSON(InvalidRequest):
    code = "invalid_json"


class UnsupportedParameter(InvalidRequest):
    """A parameter that is known but cannot be honoured: refused, because a dropped one changes the answer silently."""

    code = "unsupported_parameter"


class ConstraintFailed(InvalidRequest):
    """A schema or grammar that could be compiled proved, in the middle of an answer, more than can be kept to."""

    code = "constraint_failed"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class TemplateRefused(InvalidRequest):
    """The model's own chat template raised on these messages (an unknown role, roles out of order, …)."""

    code = "template_error"


class ReadTooSlowly(PaddockError):
    """A client left more of an answer unread than is kept for it."""

    status = 408
    type = "invalid_request_error"
    code = "read_too_slowly"


class RequestTimeout(PaddockError):
    """A request that was begun was not sent to its end."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class AuthenticationError(PaddockError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class TooManyFailures(PaddockError):
    """Wrong keys keep coming from one address."""

    status = 429
    type = "authentication_error"
    code = "too_many_failed_keys"


class PermissionDenied(PaddockError):
    """The key is known, but may not do that."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class HostNotAllowed(PaddockError):
    """The server is asked by a name that is not its own, as happens when a web page has its own name point here."""

    status = 403
    type = "permission_error"
    code = "host_not_allowed"


class OriginNotAllowed(PaddockError):
    """A web page from elsewhere asks."""

    status = 403
    type = "permission_error"
    code = "origin_not_allowed"


class NotFound(PaddockError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(PaddockError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class RateLimitExceeded(PaddockError):
    """A key has had all that it may have for now."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class RequestTooLarge(PaddockError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class URITooLong(PaddockError):
    status = 414
    type = "invalid_request_error"
    code = "uri_too_long"


class HeadersTooLarge(PaddockError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class NotSupported(PaddockError):
    """This server, or this model, does not do that at all."""

    status = 501
    type = "not_supported_error"
    code = "not_supported"


# ── the server's state ───────────────────────────────────────────────────────────────────────────────────────────────


class Unavailable(PaddockError):
    """Try again later."""

    status = 503
    type = "unavailable_error"
    code = "unavailable"


class TooManyConnections(Unavailable):
    code = "too_many_connections"


class BuffersFull(Unavailable):
    """The bodies of other requests use all the memory that is kept for bodies."""

    code = "buffers_full"


class QueueFull(PaddockError):
    """More requests wait than the server is willing to keep."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class DecodeFailed(PaddockError):
    """libllama could not run a step. The cache is in doubt after it, so the worker gives up."""

    code = "decode_failed"


class NoCells(DecodeFailed):
    """The cache has no room for a step. Nothing was computed, so the step can be planned again with fewer requests."""

    code = "no_cells"


class ModelLoading(Unavailable):
    code = "model_loading"


class ModelLoadFailed(Unavailable):
    code = "model_load_failed"


class InsufficientMemory(Unavailable):
    """As things are, it can never fit beside what must stay."""

    code = "insufficient_memory"


class ModelUnloaded(Unavailable):
    """Somebody had it unloaded, or removed, while it was waited for."""

    code = "model_unloaded"


class ModelCrashing(Unavailable):
    """It has failed again and again, and is left alone for a while."""

    code = "model_crashing"


class IllegalInstruction(ModelLoadFailed):
    """libllama was compiled for instructions that do not work here; a load without them may succeed."""

    code = "illegal_instruction"


class OutOfMemory(ModelLoadFailed):
    """There was not enough memory for it; with less of it in use a load may succeed."""

    code = "out_of_memory"


class WorkerCrashed(Unavailable):
    code = "worker_crashed"


class ReplicaLost(WorkerCrashed):
    """A server elsewhere that serves a model for us broke off in the middle, as one that crashes does."""

    code = "replica_lost"


class ReplicaFailed(Unavailable):
    """It answered, but would not have us, or said what is not understood."""

    code = "replica_failed"


class ReplicaUnreachable(ReplicaFailed):
    """There was nobody at its address."""

    code = "replica_unreachable"


class NoReplica(Unavailable):
    """None of those that serve a model together can be used right now."""

    code = "no_replica"


class ServerStopping(Unavailable):
    code = "server_stopping"


def _by_code() -> dict[str, type[PaddockError]]:
    found: dict[str, type[PaddockError]] = {}
    pending: list[type[PaddockError]] = [PaddockError]
    while pending:
        cls = pending.pop()
        found.setdefault(cls.code, cls)
        pending.extend(cls.__subclasses__())
    return found

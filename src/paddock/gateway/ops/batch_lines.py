"""How lines of batches are validated and run: as HTTP requests of their key, through the whole application."""

from __future__ import annotations

import asyncio
import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Scope

from paddock.batches import Batch, Check, Checked, Line, ModelView, Reply, prefix_key
from paddock.errors import AuthenticationError, InvalidRequest, ModelNotFound, PermissionDenied, UnsupportedParameter
from paddock.fleet import Fleet, Model, ModelStatus
from paddock.gateway.auth.caller import Caller
from paddock.gateway.auth.gate import Gate
from paddock.gateway.auth.metering import answers_of
from paddock.gateway.generation.conversation import renamed_params
from paddock.gateway.generation.defaults import body_with_defaults
from paddock.gateway.generation.endpoint import Endpoint, Route
from paddock.gateway.generation.fields import JOB_ID, RequestContext
from paddock.gateway.generation.receipts import check_receipt
from paddock.gateway.http.access_log import JOB_HEADER
from paddock.gateway.http.bodies import BodyRules, parse_body
from paddock.gateway.http.request_context import FAILURE
from paddock.gateway.http.scope import BATCH, BATCH_CALLER, BATCH_DATE
from paddock.seeds import seed_of

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class BatchEndpoint:
    """An endpoint that batches may use."""

    declared: Endpoint[Any] | Route[Any]
    field_names: Mapping[str, str]
    """As in its dialect."""


class BatchLines:
    """The server as batches see it (`paddock.batches.backend.Backend`)."""

    def __init__(
        self,
        app: ASGIApp,
        fleet: Fleet,
        gate: Gate,
        rules: BodyRules,
        endpoints: Mapping[str, BatchEndpoint],
        *,
        idle_seconds: float,
        prefix: str = "",
    ) -> None:
        """`prefix` is the path below which the application's routes are."""
        self._app = app
        self._fleet = fleet
        self._gate = gate
        self._rules = rules
        self._endpoints = endpoints
        self._idle_seconds = idle_seconds
        self._prefix = prefix

    # ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def view(self, batch: Batch) -> ModelView:
        model = self._find(batch.model)
        if model is None:
            return ModelView(served=False)
        statuses = {status.model.name: status for status in self._fleet.status()}
        own = statuses.pop(model.name)
        return ModelView(
            loaded=own.state == "loaded" or model.clustered or model.is_remote,
            slots=own.slots or model.options.parallel,
            replicas=max(sum(one.health == "ready" and not one.drained for one in own.replicas), 1),
            others_wait=any(other.waiting and other.state in ("unloaded", "loading") for other in statuses.values()),
            others_busy=any(self._is_busy(other) for other in statuses.values()),
        )

    def _is_busy(self, status: ModelStatus) -> bool:
        if status.state == "unloaded" or status.model.is_remote or status.model.clustered:
            return False
        return bool(status.running or status.waiting) or status.idle_for < self._idle_seconds

    def identity(self, model: str) -> str | None:
        found = self._find(model)
        if found is None or found.is_fake or found.is_remote or found.clustered:
            return None if found is None else found.path or ",".join(name for name, _ in found.replicas)
        parts: list[str] = []
        for path in (*(file.path for file in found.files or ()), *(adapter.path for adapter in found.adapters)):
            try:
                status = Path(path).stat()
            except OSError:
                return None
            parts.append(f"{Path(path).name}:{status.st_size}:{status.st_mtime_ns}")
        return ",".join(parts)

    def may_run(self, batch: Batch) -> str | None:
        caller = self._gate.caller_named(batch.owner)
        if caller is None:
            return f"the API key {batch.owner!r} does not exist or has expired"
        model = self._find(batch.model)
        if model is not None and not caller.may_use(model):
            return f"the API key {batch.owner!r} may not use the model {model.name!r} any more"
        return None

    def _find(self, name: str | None) -> Model | None:
        try:
            return self._fleet.catalogue.find(name)
        except ModelNotFound:
            return None

    # ── validation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, batch: Batch) -> Check:
        """The endpoint's own validation, as far as it needs no model. Used on a thread."""
        caller = self._gate.caller_named(batch.owner)
        if caller is None:
            raise AuthenticationError(f"the API key {batch.owner!r} does not exist or has expired")
        endpoint = self._endpoints[batch.endpoint]
        kinds: dict[str, str | None] = {}

        def check(data: bytes) -> Checked:
            body, _ = parse_body(_line_request(batch, endpoint, data).body, endpoint.declared.body, self._rules)
            model = self._fleet.catalogue.find(body.model)
            if not caller.may_use(model):
                raise PermissionDenied(f"this API key may not use the model {model.name!r}", param="model")
            kind = kinds.setdefault(model.name, model.kind())
            if not isinstance(endpoint.declared, Endpoint):
                if kind not in ("embedding", "generation"):
                    raise InvalidRequest(f"{model.name} is served for {kind}, not for embeddings", param="model")
                return Checked(model.name)
            if kind != "generation":
                raise InvalidRequest(f"{model.name} is served for {kind}: it does not generate text", param="model")
            return Checked(model.name, self._prompt_key(endpoint, body, model, caller))

        return check

    def _prompt_key(self, endpoint: BatchEndpoint, body: Any, model: Model, caller: Caller) -> bytes:
        assert isinstance(endpoint.declared, Endpoint)
        if body.stream:
            raise UnsupportedParameter("a line of a batch cannot be a stream", param="stream")
        body = body_with_defaults(body, model)
        with renamed_params(endpoint.field_names):
            listed = [(item.id, item.scale) for item in body.lora] if body.lora else None
            context = RequestContext("", caller.origin, self._fleet.adapters_for(model, listed))
            requests = endpoint.declared.parse(body, context)
            answers_of(requests[0], len(requests))
            if model.options.context_shift and requests[0].deterministic:
                message = "this model shifts its context (context_shift), so its answers cannot be deterministic"
                raise UnsupportedParameter(message, param="deterministic")
            check_receipt(requests, model)
        return prefix_key(requests[0].prompt, requests[0].adapters)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, batch: Batch, line: Line, body: bytes, *, load: bool) -> Reply:
        """The response to one line. Cancelling it stops the generation."""
        caller = self._gate.caller_named(batch.owner)
        if caller is None:
            return Reply(0, b"", code="invalid_api_key", message=f"the API key {batch.owner!r} does not exist")
        endpoint = self._endpoints[batch.endpoint]
        request = _line_request(batch, endpoint, body, line.custom_id)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(request.body)).encode())]
        if request.job_id:
            headers.append((JOB_HEADER.encode(), request.job_id.encode()))
        path = self._prefix + batch.endpoint
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            # A model that was unloaded a moment ago is not loaded again by accident.
            "query_string": b"" if load else b"autoload=false",
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
            BATCH: batch.id,
            BATCH_CALLER: replace(caller, origin=msgspec.structs.replace(caller.origin, batch=True)),
        }
        if request.is_deterministic:  # the batch may last past midnight
            scope[BATCH_DATE] = datetime.date.fromtimestamp(batch.created_at).isoformat()
        unread = [request.body]
        pieces: list[bytes] = []
        started: dict[str, Any] = {}

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.Future()  # the task is cancelled if the line must stop
            raise AssertionError("never resumed")

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            elif message["type"] == "http.response.body":
                pieces.append(message.get("body", b""))

        await self._app(scope, receive, send)
        failure = FAILURE.get()
        error = failure.error if failure is not None else None
        request_id = dict(started.get("headers", ())).get(b"x-request-id", b"").decode("latin-1")
        return Reply(
            started.get("status", 0),
            b"".join(pieces),
            request_id,
            code=None if error is None else error.code,
            message="" if error is None else error.message,
            retry_after=None if error is None else error.retry_after,
        )


class _Given(msgspec.Struct):
    """What a line says itself. Its validation checks the types."""

    deterministic: Any = None
    receipt: Any = None
    seed: Any = None
    job_id: Any = None


@dataclass(frozen=True, slots=True)
class _LineRequest:
    """The request of a line, with what follows from its batch and its custom_id."""

    body: bytes
    is_deterministic: bool = False
    job_id: str = ""
    """Sent as a header."""


def _line_request(batch: Batch, endpoint: BatchEndpoint, body: bytes, custom_id: str | None = None) -> _LineRequest:
    """A deterministic line has a receipt unless it or the batch wants none, and if it has no seed of its own, that of
    its custom_id by the rule of job ids. A custom_id that cannot be a job id gives the seed alone.
    """
    if not isinstance(endpoint.declared, Endpoint):
        return _LineRequest(body)
    try:
        fields: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        given = msgspec.json.decode(body, type=_Given)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _LineRequest(body)  # the validation reports it
    if not (batch.deterministic if given.deterministic is None else given.deterministic):
        return _LineRequest(body)
    if given.deterministic is None:
        fields["deterministic"] = True
    if given.receipt is None:
        fields["receipt"] = batch.receipts
    job_id = ""
    if custom_id is not None and given.seed in (None, -1) and given.job_id is None:
        if re.fullmatch(JOB_ID, custom_id):
            job_id = custom_id
        else:
            fields["seed"] = seed_of(custom_id)
    return _LineRequest(_encode(fields), is_deterministic=True, job_id=job_id)

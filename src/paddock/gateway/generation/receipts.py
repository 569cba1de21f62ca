"""Receipts of answers: the worker's facts, the hashes of the model's files and the request, made into one object."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from paddock.errors import InvalidRequest, PaddockError, ReceiptUnavailable
from paddock.fleet import Catalogue, FileDigests, Generation, Model, identity_of
from paddock.gateway.generation.conversation import ConversationFields
from paddock.gateway.generation.fields import GenerationFields
from paddock.receipts import (
    FORMAT,
    Answered,
    Asked,
    Identity,
    Receipt,
    Seed,
    SigningKey,
    sealed,
    signed,
    token_digest,
)
from paddock.types import GenerateRequest

_Body = TypeVar("_Body", bound=GenerationFields)

StreamReceipt = Callable[[], Awaitable[Any]]
"""Gives the receipt for the last event of a stream when all answers are complete; `UNSET` if none was requested."""

# Fields that do not decide the answer: how it is delivered, what is reported beside it, and who asked.
_LEFT_OUT = frozenset(
    {
        *("receipt", "stream", "stream_options", "sse_ping_interval", "verbose", "timings_per_token"),
        *("return_progress", "cache_report", "cache_prompt", "id_slot", "response_fields", "user", "metadata", "store"),
        *("speculative.type", "speculative.n_max", "speculative.n_min", "speculative.p_min"),
    }
)
_NOT_SAMPLING = frozenset({"seed", "n_probs", "post_sampling_probs"})


async def no_receipt() -> msgspec.UnsetType:
    return msgspec.UNSET


def with_date(body: _Body, day: str) -> _Body:
    """The body with the date that its chat template may print, unless it says one: `day`, or today if it is to have a
    receipt, because the same request on another day must have the same prompt.
    """
    if not day and body.receipt:
        day = datetime.date.today().isoformat()
    if not day or not isinstance(body, ConversationFields) or body.template_date is not None:
        return body
    return body.model_copy(update={"template_date": day})


def check_receipt(requests: Sequence[GenerateRequest], model: Model) -> None:
    """Refuse a receipt for an answer that could not be computed again."""
    request = requests[0]
    if not request.receipt:
        return
    if not (request.deterministic or model.options.deterministic):
        raise InvalidRequest(
            "receipt: only a deterministic answer can have one; send `deterministic: true`", param="receipt"
        )
    if request.max_seconds:
        raise InvalidRequest("receipt: t_max_predict_ms ends an answer by the clock; send one of them", param="receipt")


@dataclass(frozen=True, slots=True)
class ReceiptDesk:
    """What all receipts of a server need."""

    digests: FileDigests
    key: SigningKey | None = None

    def prepare(self, models: Catalogue) -> None:
        """A server of one model that signs receipts will need the hash of its files: it is computed from the start on.
        Files of a folder are hashed when a receipt needs them.
        """
        if self.key is not None and models.is_single and (model := models.default) is not None:
            self._start(model)

    def _start(self, model: Model) -> None:
        if not (model.is_fake or model.is_remote or model.clustered):
            self.digests.start([*(file.path for file in model.files), *(each.path for each in model.adapters)])

    def open(
        self,
        given: bytes,
        body: GenerationFields,
        filled: GenerationFields,
        *,
        endpoint: str,
        model: Model,
        shown_model: str,
        requests: Sequence[GenerateRequest],
        normalizers: Sequence[str],
    ) -> OpenReceipt:
        """`given` is the request's JSON, `body` what it means, and `filled` the same with the model's defaults."""
        self._start(model)
        asked = _asked(json.loads(given), body, filled)
        asked.setdefault("model", shown_model)
        if model.adapters:
            scales = dict(requests[0].adapters)
            asked["lora"] = [{"id": number, "scale": scales.get(number, 0.0)} for number in range(len(model.adapters))]
        if normalizers:
            asked["normalize"] = list(normalizers)
        return OpenReceipt(self, Asked(endpoint=endpoint, body=asked), _seed_rule(asked, body, filled), requests)


@dataclass(frozen=True, slots=True)
class OpenReceipt:
    """The receipt of one HTTP request, while its answers are generated."""

    desk: ReceiptDesk
    asked: Asked
    seed_rule: str
    requests: Sequence[GenerateRequest]

    async def add_to(self, reply: Any, generations: Sequence[Generation]) -> dict[str, Any]:
        """A whole reply with its receipt."""
        receipt = await self._receipt(generations)

        def seal() -> dict[str, Any]:
            written: dict[str, Any] = json.loads(msgspec.json.encode(reply))  # as the client reads it
            return written | {"receipt": sealed(written, receipt, self.desk.key)}

        return await asyncio.to_thread(seal)

    def of_stream(self, generations: Sequence[Generation]) -> StreamReceipt:
        async def receipt() -> dict[str, Any]:
            return await asyncio.to_thread(partial(signed, await self._receipt(generations), self.desk.key))

        return receipt

    async def _receipt(self, generations: Sequence[Generation]) -> dict[str, Any]:
        identity = await self._identity(generations)
        answers = [
            _answered(generation, index)
            for request, generation in zip(self.requests, generations, strict=True)
            for index in range(request.n)
        ]
        seed = Seed(value=answers[0].seed, rule=self.seed_rule, job_id=self.requests[0].job_id or None)
        receipt = Receipt(
            format=FORMAT,
            request=Asked(endpoint=self.asked.endpoint, body=self.asked.body | {"seed": answers[0].seed}),
            identity=identity,
            sampling=_sampling(self.requests[0]),
            seed=seed,
            answers=answers,
            reply_sha256=None,
            line_sha256=None,
            previous=None,
            signature=None,
        )
        built: dict[str, Any] = msgspec.to_builtins(receipt)
        return built

    async def _identity(self, generations: Sequence[Generation]) -> Identity:
        """Of the servers that answered, which must be equal: a receipt has one."""
        found = [await self._identity_of(generation) for generation in generations]
        if any(each != found[0] for each in found):
            raise ReceiptUnavailable("the prompts were answered by replicas that differ; send one request for each")
        return found[0]

    async def _identity_of(self, generation: Generation) -> Identity:
        facts = next((facts for facts, _ in generation.receipts.values()), None)
        if facts is not None and facts.identity is not None:
            try:
                return msgspec.convert(facts.identity, Identity)
            except msgspec.ValidationError as error:
                raise ReceiptUnavailable(
                    f"the replica {generation.replica} has another version, with other receipts: {error}"
                ) from None
        if generation.worker_info is None:
            raise ReceiptUnavailable(f"the replica {generation.replica or 'of this model'} gave no receipt")
        return await identity_of(
            generation.worker_info,
            self.desk.digests,
            fingerprint=generation.fingerprint,
            adapters=generation.adapters,
        )


def _asked(given: dict[str, Any], body: GenerationFields, filled: GenerationFields) -> dict[str, Any]:
    """The fields of the request that decide the answer. A field that the server does not know may be anything, also a
    secret, so it is left out.
    """
    fields = {name: field.alias or name for name, field in type(body).model_fields.items()}
    defaults = {name for name in fields if getattr(body, name) != getattr(filled, name)}
    asked = {name: given[name] for name in fields.values() if given.get(name) is not None}
    asked |= filled.model_dump(mode="json", by_alias=True, include=defaults)
    asked |= {"deterministic": True} | ({"job_id": body.job_id} if body.job_id else {})
    return {name: value for name, value in asked.items() if name not in _LEFT_OUT}


def _seed_rule(asked: dict[str, Any], body: GenerationFields, filled: GenerationFields) -> str:
    if body.job_id and asked.get("seed") in (None, -1):
        return "job_id"
    if body.seed not in (None, -1):
        return "request"
    return "default" if filled.seed not in (None, -1) else "random"


def _answered(generation: Generation, index: int) -> Answered:
    if index not in generation.receipts:
        raise PaddockError("the worker gave nothing for a receipt")
    facts, finish = generation.receipts[index]
    return Answered(
        prompt_tokens=generation.prompt_tokens,
        prompt_sha256=facts.prompt_sha256,
        seed=facts.seed,
        tokens=facts.tokens,
        tokens_sha256=token_digest(facts.tokens),
        text_sha256=facts.text_sha256,
        finish_reason=finish,
    )


def _sampling(request: GenerateRequest) -> dict[str, Any]:
    params = request.sampling
    values = {name: getattr(params, name) for name in params.__struct_fields__ if name not in _NOT_SAMPLING}
    # As JSON: a bias of minus infinity is null there.
    found: dict[str, Any] = json.loads(msgspec.json.encode(values | {"max_tokens": request.max_tokens}))
    return found

"""`/api/chat` and `/api/generate`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.errors import ContextLengthExceeded, InvalidRequest
from paddock.fleet import Fleet, Generation, Model
from paddock.gateway.auth.caller import caller_of, model_to_run
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.ollama.answer import ChatWriter, GenerateWriter
from paddock.gateway.dialects.ollama.durations import nanoseconds, now
from paddock.gateway.dialects.ollama.models import lacks_thinking
from paddock.gateway.dialects.ollama.requests import ChatRequest, GenerateRequest, OllamaFields
from paddock.gateway.dialects.ollama.resolving import Named, Resolver, keep_alive_of, load_or_unload
from paddock.gateway.dialects.ollama.schema import AssistantMessage, ChatLine, Failure, GenerateLine
from paddock.gateway.generation.endpoint import Endpoint
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.job_ids import read_generation
from paddock.gateway.generation.respond import respond
from paddock.gateway.http.disconnect import until_disconnect
from paddock.gateway.http.framing import NDJSON
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.types import ChatPrompt, CountTokens, MixedPrompt, Prompt, Render
from paddock.types import GenerateRequest as Generate
from paddock.wire.messages import Text, Tokens

_encode = msgspec.json.Encoder().encode
_Body = TypeVar("_Body", bound=OllamaFields)
_FIELD_NAMES: Final = {"reasoning_effort": "think"}


def _parse_chat(body: ChatRequest, context: RequestContext) -> list[Generate]:
    return [body.request(context, body.prompt(), max_tokens=body.max_tokens, n_probs=body.n_probs)]


CHAT: Final[Endpoint[Any]] = Endpoint(
    paths=["/api/chat"],
    name="ollama_chat",
    description="The next message of a conversation, as Ollama's API gives it. Without messages: load the model.",
    body=ChatRequest,
    parse=_parse_chat,
    answer=lambda body, model, generations, receipt: ChatWriter(body, model, time.monotonic(), generations),
    trace_kind="chat",
    responses=(ChatLine,),
    events=(ChatLine,),
)
GENERATE: Final[Endpoint[Any]] = Endpoint(
    paths=["/api/generate"],
    name="ollama_generate",
    description="The answer to a prompt, as Ollama's API gives it. Without a prompt: load the model.",
    body=GenerateRequest,
    parse=lambda body, context: [],
    answer=lambda body, model, generations, receipt: ChatWriter(body, model, time.monotonic(), generations),
    trace_kind="text_completion",
    responses=(GenerateLine,),
    events=(GenerateLine,),
)


def generating_routes(services: Services, resolver: Resolver) -> APIRouter:
    fleet, limit = services.fleet, services.settings.max_body_bytes
    router = APIRouter(tags=["ollama"])

    @router.post("/api/chat", name=CHAT.name, **_described(CHAT))
    async def chat(request: Request) -> Response:
        """The next message of a conversation. Without messages the model is loaded, or unloaded with `keep_alive` 0."""
        began = time.monotonic()
        body = await read_generation(request, ChatRequest, limit=limit)
        named = resolver.find(request, body.model)
        if body.is_empty:
            reason: Any = await load_or_unload(request, fleet, named.model, body.keep_alive)
            line = ChatLine(
                model=named.asked,
                created_at=now(),
                message=AssistantMessage(role="assistant", content=""),
                done=True,
                done_reason=reason,
                total_duration=nanoseconds(time.monotonic() - began),
            )
            return _one(line, stream=body.stream)
        await _check_thinking(fleet, body, named)
        body = _completed(body, named).model_copy(update={"messages": [*named.messages, *body.messages]})
        after = _after(fleet, named.model, keep_alive_of(request, named.model, body.keep_alive))
        if body.truncate:
            body = await _truncated(request, fleet, body)
        endpoint = replace(
            CHAT,
            answer=lambda body, model, generations, receipt: ChatWriter(body, named.asked, began, after(generations)),
        )
        return await respond(request, fleet, endpoint, body, framing=NDJSON, field_names=_FIELD_NAMES)

    @router.post("/api/generate", name=GENERATE.name, **_described(GENERATE))
    async def generate(request: Request) -> Response:
        """The answer to a prompt. Without one the model is loaded, or unloaded if `keep_alive` is 0."""
        began = time.monotonic()
        body = await read_generation(request, GenerateRequest, limit=limit)
        named = resolver.find(request, body.model)
        if body.is_empty:
            reason: Any = await load_or_unload(request, fleet, named.model, body.keep_alive)
            line = GenerateLine(
                model=named.asked,
                created_at=now(),
                response="",
                done=True,
                done_reason=reason,
                total_duration=nanoseconds(time.monotonic() - began),
            )
            return _one(line, stream=body.stream)
        await _check_thinking(fleet, body, named)
        if not body.raw:
            body = _completed(body, named)
        else:
            body = body.model_copy(update={"model": named.model.name, **_option_fields(body, named)})
        after = _after(fleet, named.model, keep_alive_of(request, named.model, body.keep_alive))
        prompt: Prompt = body.text_prompt(named.messages)
        if body.context:
            prompt = await _after_context(request, fleet, body, prompt)
        has_context = not body.is_raw and not body.suffix

        def parse(body: GenerateRequest, context: RequestContext) -> list[Generate]:
            # The model's defaults are known now; they may be of the template.
            return [
                body.request(
                    context,
                    body.text_prompt(named.messages) if isinstance(prompt, ChatPrompt) else prompt,
                    max_tokens=body.max_tokens,
                    n_probs=body.n_probs,
                    echo=has_context,
                    return_tokens=has_context,
                )
            ]

        endpoint = replace(
            GENERATE,
            parse=parse,
            answer=lambda body, model, generations, receipt: GenerateWriter(
                body, named.asked, began, after(generations), has_context=has_context
            ),
        )
        names = _FIELD_NAMES | {"messages": "prompt"}
        return await respond(request, fleet, endpoint, body, framing=NDJSON, field_names=names)

    return router


def _after(fleet: Fleet, model: Model, stay: float | None) -> Callable[[Sequence[Generation]], Sequence[Generation]]:
    """Lets the model stay so long after a generation has ended."""

    def watched(generations: Sequence[Generation]) -> Sequence[Generation]:
        if stay is not None:
            generations[0].when_ended(lambda _: fleet.stay_loaded(model, stay))
        return generations

    return watched


def _described(endpoint: Endpoint[Any]) -> dict[str, Any]:
    return describe(
        *endpoint.responses,
        body=endpoint.body,
        events=endpoint.events,
        framing=NDJSON,
        error=Failure,
        prefix="Ollama",
    )


def _one(line: ChatLine | GenerateLine, *, stream: bool) -> Response:
    """A stream of one line, or a body."""
    return Response(NDJSON.event(_encode(line)), media_type=NDJSON.media_type) if stream else JSON(line)


async def _check_thinking(fleet: Fleet, body: OllamaFields, named: Named) -> None:
    """Refuse `think` for a model without reasoning, as Ollama does."""
    if not body.think:
        return
    loaded = fleet.info(named.model)
    template = body.template or (loaded.chat_template if loaded is not None else "")
    if await asyncio.to_thread(lacks_thinking, named.model, named.created, template):
        raise InvalidRequest(f'"{named.asked}" does not support thinking', param="think")


def _option_fields(body: OllamaFields, named: Named) -> dict[str, Any]:
    options = named.options(body.options)
    return {} if options is None else options.fields()


def _completed(body: _Body, named: Named) -> _Body:
    """The body with what its name stands for, and its options as fields."""
    update: dict[str, Any] = {"model": named.model.name, **_option_fields(body, named)}
    if (created := named.created) is not None:
        update |= {
            "system": body.system or created.system or None,
            "template": body.template or created.template or None,
        }
    return body.model_copy(update=update)


async def _after_context(request: Request, fleet: Fleet, body: GenerateRequest, prompt: Prompt) -> Prompt:
    """The tokens of the earlier exchange, and the prompt after them."""
    if isinstance(prompt, ChatPrompt):
        model = model_to_run(request, fleet, body.model)
        question = Render(prompt, caller_of(request).origin)
        shown = await until_disconnect(request, fleet.ask(model, question))
        assert isinstance(shown, Text), "the answer to this question"
        info = fleet.info(model)
        text = shown.text.removeprefix(info.bos if info is not None else "")
    else:
        text = body.prompt
    return MixedPrompt([*(body.context or ()), text])


async def _truncated(request: Request, fleet: Fleet, body: ChatRequest) -> ChatRequest:
    """The body without its oldest messages, as many as it takes so that the others fit. Messages of the system and the
    last message stay.
    """
    model = model_to_run(request, fleet, body.model)
    kept = [place for place, message in enumerate(body.messages) if message.role == "system"]
    old = [place for place in range(len(body.messages) - 1) if place not in kept]

    def without(count: int) -> ChatRequest:
        left_out = set(old[:count])
        messages = [message for place, message in enumerate(body.messages) if place not in left_out]
        return body.model_copy(update={"messages": messages})

    async def fits(count: int) -> bool:
        prompt = without(count).prompt()
        try:
            found = await until_disconnect(request, fleet.ask(model, CountTokens(prompt, caller_of(request).origin)))
        except ContextLengthExceeded:
            return False
        except InvalidRequest:
            return True  # a template may refuse messages; the generation says so
        assert isinstance(found, Tokens), "the answer to this question"
        return not found.n_ctx or found.count < found.n_ctx

    if await fits(0):
        return body
    least, most = 1, len(old)
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if await fits(middle) else (middle + 1, most)
    return without(most)

"""`/api/embed` and the older `/api/embeddings`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, Field

from paddock.errors import ContextLengthExceeded, InvalidRequest
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.ollama.durations import nanoseconds
from paddock.gateway.dialects.ollama.options import Options
from paddock.gateway.dialects.ollama.requests import KeepAlive
from paddock.gateway.dialects.ollama.resolving import Named, Resolver, keep_alive_of, load, load_or_unload
from paddock.gateway.dialects.ollama.schema import Embeddings, Failure, OneEmbedding
from paddock.gateway.generation.endpoint import Call
from paddock.gateway.generation.fields import ModelFields
from paddock.gateway.generation.text_questions import ask
from paddock.gateway.generation.vectors import floats, norm_of, pool
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.gateway.http.sizes import MOST_INPUTS
from paddock.types import TextPrompt, Tokenize, TokenPrompt
from paddock.wire.messages import Pooled, Tokens

_UNCHANGED = -1
"""Vectors are not normalized."""


class _Fields(ModelFields):
    keep_alive: KeepAlive | None = None
    options: Options | None = None

    def ignored(self) -> list[str]:
        """No option changes a vector."""
        return [] if self.options is None else [f"options.{name}" for name in self.options.given]


class EmbedRequest(_Fields):
    input: Annotated[
        list[str],
        BeforeValidator(
            lambda given: [] if given in (None, "") else [given] if isinstance(given, str) else given,
            json_schema_input_type=str | list[str],
        ),
        Field(max_length=MOST_INPUTS),
    ] = Field(default_factory=list)
    truncate: bool | None = None
    """Cut inputs that are too long. Without it they are refused."""
    dimensions: int | None = Field(None, ge=0, lt=2**31)


class EmbeddingRequest(_Fields):
    prompt: str = ""


def embedding_routes(services: Services, resolver: Resolver) -> APIRouter:
    fleet, limit = services.fleet, services.settings.max_body_bytes
    router = APIRouter(tags=["ollama"])
    said: dict[str, Any] = {"error": Failure, "prefix": "Ollama"}

    async def vectors(request: Request, body: Any, named: Named, inputs: list[str], **options: Any) -> Pooled:
        stay = keep_alive_of(request, named.model, body.keep_alive)
        call = Call(request, fleet, body.model_copy(update={"model": named.model.name}))
        if await fleet.pooling(call.model) == "none":
            raise InvalidRequest("this model gives a vector per token (pooling none): use /embeddings", param="model")
        prompts: list[TextPrompt | TokenPrompt] = [TextPrompt(text) for text in inputs]
        param = "prompt" if isinstance(body, EmbeddingRequest) else "input"
        for place, text in enumerate(inputs, 1):
            if not text:
                raise InvalidRequest(f"{param}: input {place} of {len(inputs)} is empty", param=param)
        try:
            pooled = await pool(call, "embedding", prompts, param, **options)
        except ContextLengthExceeded as error:
            most = error.numbers.get("n_ctx") if error.numbers else None
            if not most or not getattr(body, "truncate", None):
                raise
            cut = [await _cut(call, text, most) for text in inputs]
            pooled = await pool(call, "embedding", cut, param, **options)
        if stay is not None:
            fleet.stay_loaded(named.model, stay)
        return pooled

    @router.post("/api/embed", **describe(Embeddings, body=EmbedRequest, **said))
    async def ollama_embed(request: Request) -> Response:
        """A vector of length 1 for each input."""
        began = time.monotonic()
        body = await read_body(request, EmbedRequest, limit=limit)
        named = resolver.find(request, body.model)
        pooled: Pooled | None = None
        loading = 0.0
        if body.input:
            loading = await load(request, fleet, named.model)
            call = Call(request, fleet, body.model_copy(update={"model": named.model.name}))
            options = {"dimensions": body.dimensions or None, "normalize": norm_of(call, None)}
            pooled = await vectors(request, body, named, body.input, **options)
        else:
            await load_or_unload(request, fleet, named.model, body.keep_alive)
        return JSON(
            Embeddings(
                model=named.asked,
                embeddings=[floats(data) for data in pooled.vectors] if pooled is not None else [],
                total_duration=nanoseconds(time.monotonic() - began),
                load_duration=nanoseconds(loading),
                prompt_eval_count=pooled.tokens if pooled is not None else 0,
            )
        )

    @router.post("/api/embeddings", **describe(OneEmbedding, body=EmbeddingRequest, **said))
    async def ollama_embeddings(request: Request) -> Response:
        """The vector of one text, not normalized. Newer programs use `/api/embed`."""
        body = await read_body(request, EmbeddingRequest, limit=limit)
        named = resolver.find(request, body.model)
        if not body.prompt:
            await load_or_unload(request, fleet, named.model, body.keep_alive)
            return JSON(OneEmbedding([]))
        pooled = await vectors(request, body, named, [body.prompt], normalize=_UNCHANGED)
        return JSON(OneEmbedding(floats(pooled.vectors[0])))

    return router


async def _cut(call: Call[Any], text: str, most: int) -> TextPrompt | TokenPrompt:
    """The input, or as many of its tokens as fit. The last one stays: it may end every input."""
    answer = await ask(call, Tokenize([text], True, True, False, call.origin), Tokens)
    tokens: list[int] = msgspec.json.decode(answer.listed)
    return TextPrompt(text) if len(tokens) <= most else TokenPrompt([*tokens[: most - 1], tokens[-1]])

"""`/tokenize`, `/detokenize` and `/apply-template`: text and tokens without generation."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, PlainValidator

from paddock.gateway.auth.caller import caller_of
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.openai.requests import ChatCompletionRequest
from paddock.gateway.generation.fields import LARGEST, ModelFields, check_parts
from paddock.gateway.generation.text_questions import ask, refuse_long, refuse_long_chat
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.gateway.http.sizes import MOST_TOKENS
from paddock.types import Detokenize, Render, Tokenize
from paddock.wire import Text, Tokens


def _parts(value: Any) -> list[str | int]:
    """A text, or a list of texts and token ids."""
    parts = [value] if isinstance(value, str) else value
    check_parts(parts, "it must be a text, or a list of texts and token ids")
    if len(parts) > MOST_TOKENS:
        raise ValueError(f"there are {len(parts)} parts; the limit is {MOST_TOKENS}")
    return parts


class TokenizeRequest(ModelFields):
    token_lists = frozenset({"content"})

    content: Annotated[list[Any], PlainValidator(_parts, json_schema_input_type=str | list[str | int])]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(ModelFields):
    token_lists = frozenset({"tokens"})

    tokens: list[Annotated[int, Field(ge=0, le=LARGEST)]] = Field(max_length=MOST_TOKENS, fail_fast=True)


class TokenPiece(msgspec.Struct):
    id: int
    piece: str | list[int]
    """Its text, or its bytes if they are not valid text."""


class Tokenized(msgspec.Struct):
    tokens: list[int | TokenPiece]


class Detokenized(msgspec.Struct):
    content: str


class Rendered(msgspec.Struct):
    prompt: str


def text_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.post("/tokenize", **describe(Tokenized, body=TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """The tokens of a text."""
        body, model = await services.read(request, TokenizeRequest)
        refuse_long(request, "content", body.content)
        origin = caller_of(request).origin
        question = Tokenize(body.content, body.add_special, body.parse_special, body.with_pieces, origin)
        answer = await ask(request, services.fleet, model, question, Tokens)
        return Response(b'{"tokens":' + answer.listed + b"}", media_type=JSON.media_type)

    @router.post("/detokenize", **describe(Detokenized, body=DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        body, model = await services.read(request, DetokenizeRequest)
        question = Detokenize(body.tokens, caller_of(request).origin)
        return JSON(Detokenized((await ask(request, services.fleet, model, question, Text)).text))

    @router.post("/apply-template", **describe(Rendered, body=ChatCompletionRequest))
    async def apply_template(request: Request) -> Response:
        """The rendered prompt of a chat request. Takes the body of one; generates nothing."""
        body, model = await services.read(request, ChatCompletionRequest)
        prompt = body.prompt()
        refuse_long_chat(request, prompt)
        question = Render(prompt, caller_of(request).origin)
        return JSON(Rendered((await ask(request, services.fleet, model, question, Text)).text))

    return router

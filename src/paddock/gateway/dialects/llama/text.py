"""`/tokenize`, `/detokenize` and `/apply-template`: text and tokens without generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec
from fastapi.responses import Response
from pydantic import Field, PlainValidator

from paddock.gateway.dialects.openai.requests import ChatCompletionRequest
from paddock.gateway.generation.endpoint import Call, Route
from paddock.gateway.generation.fields import LARGEST, ModelFields, check_parts
from paddock.gateway.generation.text_questions import ask, prompt_of, refuse_long
from paddock.gateway.http.responses import JSON
from paddock.gateway.http.sizes import MOST_TOKENS
from paddock.types import Detokenize, Render, Tokenize
from paddock.wire.messages import Text, Tokens


def _parts(value: Any) -> list[str | int]:
    """A text, or a list of texts and token ids."""
    parts = [value] if isinstance(value, str) else value
    check_parts(parts, "it must be a text, or a list of texts and token ids")
    if len(parts) > MOST_TOKENS:
        raise ValueError(f"there are {len(parts)} parts; the limit is {MOST_TOKENS}")
    return parts


class TokenizeRequest(ModelFields):
    lenient_defaults: ClassVar[Mapping[str, Any]] = {"content": ""}
    token_lists = frozenset({"content"})

    content: Annotated[list[Any], PlainValidator(_parts, json_schema_input_type=str | list[str | int])]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(ModelFields):
    lenient_defaults: ClassVar[Mapping[str, Any]] = {"tokens": []}
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


async def tokenize(call: Call[TokenizeRequest]) -> Response:
    """The tokens of a text."""
    body = call.body
    refuse_long(call, "content", body.content)
    question = Tokenize(body.content, body.add_special, body.parse_special, body.with_pieces, call.origin)
    answer = await ask(call, question, Tokens)
    return Response(b'{"tokens":' + answer.listed + b"}", media_type=JSON.media_type)


async def detokenize(call: Call[DetokenizeRequest]) -> Detokenized:
    """The text of tokens."""
    return Detokenized((await ask(call, Detokenize(call.body.tokens, call.origin), Text)).text)


async def apply_template(call: Call[ChatCompletionRequest]) -> Rendered:
    """The rendered prompt of a chat request. Takes the body of one; generates nothing."""
    return Rendered((await ask(call, Render(await prompt_of(call), call.origin), Text)).text)


TEXT_ROUTES: Final[Sequence[Route[Any]]] = [
    Route(["/tokenize"], TokenizeRequest, Tokenized, tokenize),
    Route(["/detokenize"], DetokenizeRequest, Detokenized, detokenize),
    Route(["/apply-template"], ChatCompletionRequest, Rendered, apply_template),
]

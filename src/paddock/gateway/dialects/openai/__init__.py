"""OpenAI's API: chat completions, completions, embeddings, transcriptions, models, files and batches."""

from __future__ import annotations

from typing import Final

from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.dialects.openai import chat, completions
from paddock.gateway.dialects.openai.batches import batch_routes
from paddock.gateway.dialects.openai.embeddings import EMBEDDINGS_ROUTE
from paddock.gateway.dialects.openai.files import file_routes
from paddock.gateway.dialects.openai.models import model_routes
from paddock.gateway.dialects.openai.requests import ChatCompletionRequest, CompletionRequest
from paddock.gateway.dialects.openai.schema import ChatCompletion, ChatCompletionChunk, Completion
from paddock.gateway.dialects.openai.transcriptions import transcription_routes
from paddock.gateway.generation.endpoint import Call, Endpoint, Route
from paddock.gateway.generation.text_questions import InputTokens, count_tokens

_CHAT: Final = Endpoint(
    paths=["/v1/chat/completions", "/chat/completions"],
    name="create_chat_completion",
    description="Generate the next message of a conversation.",
    body=ChatCompletionRequest,
    parse=chat.parse,
    answer=chat.ChatAnswer,
    trace_kind="chat",
    responses=(ChatCompletion,),
    events=(ChatCompletionChunk,),
    ends_with_done=True,
)
_COMPLETIONS: Final = Endpoint(
    paths=["/v1/completions"],
    name="create_completion",
    description="Complete a text.",
    body=CompletionRequest,
    parse=completions.parse,
    answer=completions.CompletionAnswer,
    trace_kind="text_completion",
    responses=(Completion,),
    events=(Completion,),
    ends_with_done=True,
)


async def count_chat_tokens(call: Call[ChatCompletionRequest]) -> InputTokens:
    """Count the tokens of a conversation, as llama-server does. Takes the body of a chat completion."""
    return InputTokens(input_tokens=await count_tokens(call))


_COUNT_ROUTE: Final = Route(
    ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
    ChatCompletionRequest,
    InputTokens,
    count_chat_tokens,
)
OPENAI: Final = Dialect(
    tag="openai",
    endpoints=[_CHAT, _COMPLETIONS],
    routes=[EMBEDDINGS_ROUTE, _COUNT_ROUTE],
    routers=lambda services: [
        model_routes(services),
        file_routes(services),
        batch_routes(services),
        transcription_routes(services),
    ],
    permissions={
        "key": [
            *("GET /models", "GET /v1/models", "GET /v1/models/{id}"),
            *("POST /v1/files", "GET /v1/files", "GET /v1/files/{file_id}", "GET /v1/files/{file_id}/content"),
            *("DELETE /v1/files/{file_id}", "POST /v1/batches", "GET /v1/batches", "GET /v1/batches/{batch_id}"),
            "POST /v1/batches/{batch_id}/cancel",
            *("POST /v1/audio/transcriptions", "POST /audio/transcriptions"),
        ],
        "admin": ["POST /models", "POST /v1/models"],
    },
)

"""`/v1/audio/transcriptions`: a conversation with one audio file, as llama-server makes it of a form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import ConfigDict, Field, model_validator

from paddock.errors import InvalidRequest, UnsupportedParameter
from paddock.fleet import Fleet, Generation, Model
from paddock.gateway.auth.caller import model_to_run
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.openai.chat import DONE
from paddock.gateway.generation.endpoint import Endpoint
from paddock.gateway.generation.fields import LARGEST, GenerationFields, RequestContext
from paddock.gateway.generation.generations import collect
from paddock.gateway.generation.job_ids import with_job
from paddock.gateway.generation.media import media_part, take_media
from paddock.gateway.generation.respond import respond
from paddock.gateway.http.fields import Unsupported
from paddock.gateway.http.forms import read_form
from paddock.gateway.http.framing import SSE
from paddock.gateway.http.openapi import TEXT, describe
from paddock.types import ChatPrompt, GenerateRequest, Usage

_encode = msgspec.json.Encoder().encode
_PATHS: Final = ("/v1/audio/transcriptions", "/audio/transcriptions")
_INSTRUCTION: Final = "Transcribe audio to text"
# LFM2's, whose models were trained with another instruction.
_LFM2_MARKERS: Final = ("<|tool_list_start|>", "<|tool_list_end|>")
_LFM2_SYSTEM: Final = "Perform ASR."
_TIMED: Final = ("verbose_json", "srt", "vtt", "diarized_json")
_NOT_HERE: Final = (
    *("cache_report", "grammar", "json_schema", "lora", "receipt", "regex", "return_progress"),
    *("timings_per_token", "verbose"),
)


class TranscriptionRequest(GenerationFields):
    """The fields of the form, but for the file. A form has texts only, so texts are read as numbers."""

    model_config = ConfigDict(strict=False)
    unsupported: ClassVar[Unsupported] = {
        "chunking_strategy": ("auto",),
        "include": ([],),
        "known_speaker_names": ([],),
        "known_speaker_references": ([],),
        "timestamp_granularities": ([],),
    }

    language: str | None = Field(None, max_length=64)
    prompt: str | None = None
    """Replaces the instruction."""
    response_format: str | None = None
    max_tokens: int | None = Field(None, ge=-1, le=LARGEST)

    @model_validator(mode="after")
    def _check_format(self) -> TranscriptionRequest:
        if self.response_format in _TIMED:
            reason = "it needs the time of each word or speaker, which the model does not give"
            raise InvalidRequest(
                f"response_format {self.response_format!r} is not supported: {reason}; use json or text",
                param="response_format",
            )
        if self.response_format not in (None, "", "json", "text"):
            raise InvalidRequest("response_format: it must be json or text", param="response_format")
        for name in _NOT_HERE:
            if getattr(self, name):
                raise UnsupportedParameter(f"{name!r} is not a parameter of this endpoint", param=name)
        return self

    def messages(self, template: str, file: bytes) -> list[dict[str, Any]]:
        """As llama-server makes them. `template` is the model's chat template."""
        is_lfm2 = all(marker in template for marker in _LFM2_MARKERS)
        text = self.prompt or ("" if is_lfm2 else _INSTRUCTION)
        if self.language:
            text += f" (language: {self.language})"
        parts = [{"type": "text", "text": text}, media_part("audio", file, "file")]
        system = [{"role": "system", "content": _LFM2_SYSTEM}] if is_lfm2 else []
        return [*system, {"role": "user", "content": parts}]


class CachedTokens(msgspec.Struct, kw_only=True):
    cached_tokens: int


class TranscriptionUsage(msgspec.Struct, kw_only=True):
    type: Literal["tokens"] = msgspec.field(default_factory=lambda: "tokens")
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens


class Transcription(msgspec.Struct, kw_only=True):
    text: str
    usage: TranscriptionUsage


class TranscriptDelta(msgspec.Struct, kw_only=True):
    type: Literal["transcript.text.delta"] = msgspec.field(default_factory=lambda: "transcript.text.delta")
    delta: str


class TranscriptDone(msgspec.Struct, kw_only=True):
    type: Literal["transcript.text.done"] = msgspec.field(default_factory=lambda: "transcript.text.done")
    text: str
    usage: TranscriptionUsage


class TranscriptionAnswer:
    def __init__(self, body: TranscriptionRequest, generations: Sequence[Generation]) -> None:
        (self._generation,) = generations
        self._is_text = body.response_format == "text"

    async def whole(self) -> Transcription | Response:
        (answer,) = await collect(self._generation, 1)
        if self._is_text:
            return PlainTextResponse(answer.text)
        return Transcription(text=answer.text, usage=_usage(answer.usage))

    async def events(self) -> AsyncGenerator[bytes]:
        text = ""
        with closing(self._generation) as generation:
            async for delta in generation:
                event = b""
                if delta.text:
                    text += delta.text
                    event = SSE.event(_encode(TranscriptDelta(delta=delta.text)))
                if delta.finish is not None and delta.usage is not None:
                    event += SSE.event(_encode(TranscriptDone(text=text, usage=_usage(delta.usage)))) + DONE
                if event:
                    yield event


def _usage(usage: Usage) -> TranscriptionUsage:
    return TranscriptionUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        input_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
    )


_ENDPOINT: Final[Endpoint[Any]] = Endpoint(
    paths=_PATHS,
    name="create_transcription",
    description="Write down what is said in an audio file.",
    body=TranscriptionRequest,
    parse=lambda body, context: [],
    answer=lambda body, model, generations, receipt: TranscriptionAnswer(body, generations),
    trace_kind="chat",
    responses=(Transcription,),
    events=(TranscriptDelta, TranscriptDone),
    ends_with_done=True,
)


def transcription_routes(services: Services) -> APIRouter:
    fleet, limit = services.fleet, services.settings.max_body_bytes
    router = APIRouter(tags=["openai"])

    @router.post(_PATHS[1], name=_ENDPOINT.name, **_described())
    @router.post(_PATHS[0], name=_ENDPOINT.name, **_described())
    async def transcribe(request: Request) -> Response:
        """Write down what is said in an audio file, sent as `multipart/form-data`. The model must read audio."""
        body, file = await read_form(
            request, TranscriptionRequest, limit=limit, example="-F file=@speech.wav -F model=NAME"
        )
        body = with_job(request, body)
        model = model_to_run(request, fleet, body.model)
        template = await asyncio.to_thread(_checked_template, fleet, model)

        def parse(body: TranscriptionRequest, context: RequestContext) -> list[GenerateRequest]:
            if body.temperature is None:  # neither the request nor the model's defaults have one
                body = body.model_copy(update={"temperature": 0.0})
            messages = body.messages(template, file)
            prompt = ChatPrompt(messages, media=take_media(messages))
            return [body.request(context, prompt, max_tokens=body.max_tokens)]

        endpoint = replace(_ENDPOINT, parse=parse)
        return await respond(request, fleet, endpoint, body, framing=SSE, field_names={"messages": "prompt"})

    return router


def _checked_template(fleet: Fleet, model: Model) -> str:
    """The source of the model's chat template, as far as it is known here. Refuses a model that does not read audio
    before it is loaded for the request. Reads the headers of its files.
    """
    if model.is_remote or model.clustered:
        return ""
    if "audio" not in model.media():
        reads = "its projector reads images only" if model.media() else "it has no projector (mmproj)"
        raise InvalidRequest(f"file: the model {model.name} does not support audio input: {reads}", param="file")
    info = fleet.info(model)
    return model.chat_template() if info is None else info.chat_template


def _described() -> dict[str, Any]:
    text, number = {"type": "string"}, {"type": "string", "description": "A number."}
    schema = {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "model": text,
            "language": text,
            "prompt": text,
            "response_format": {"enum": ["json", "text"]},
            "temperature": number,
            "max_tokens": number,
            "stream": {"enum": ["true", "false"]},
        },
        "required": ["file"],
    }
    route = describe(*_ENDPOINT.responses, events=_ENDPOINT.events, done=_ENDPOINT.ends_with_done, text=TEXT)
    content = {"multipart/form-data": {"schema": schema}}
    return {**route, "openapi_extra": {"requestBody": {"required": True, "content": content}}}

"""A dialect is one object: a toy API with other framing, errors and fields needs no change anywhere else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import jsonschema
import msgspec
import pytest
from fastapi import APIRouter
from fastapi.responses import Response
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import Field

from paddock.config import load_settings
from paddock.fleet import Fleet, Generation, Rules, open_catalogue
from paddock.gateway import app as application
from paddock.gateway.dialects import DIALECTS
from paddock.gateway.dialects.dialect import Dialect, Services
from paddock.gateway.generation.endpoint import Call, Endpoint, Route
from paddock.gateway.generation.fields import GenerationFields, RequestContext
from paddock.gateway.generation.generations import whole
from paddock.gateway.generation.receipts import StreamReceipt
from paddock.gateway.http.fields import Unsupported
from paddock.gateway.http.framing import NDJSON
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.gateway.ops.tracing import Tracing
from paddock.types import ChatPrompt, GenerateRequest

# ── the folder of the dialect ────────────────────────────────────────────────────────────────────────────────────────


class ToyRequest(GenerationFields):
    unsupported: ClassVar[Unsupported] = {"images": ([],)}
    without_effect = frozenset({"mood"})

    stream: bool = True
    say: str
    limit: int | None = Field(None, ge=1)


class ToyLine(msgspec.Struct):
    text: str
    done: bool


class ToyCount(msgspec.Struct):
    model: str
    words: int


class ToyFailure(msgspec.Struct):
    error: str


class ToyAnswer:
    def __init__(self, body: ToyRequest, model: str, generations: Sequence[Generation], receipt: StreamReceipt) -> None:
        (self._generation,) = generations

    async def whole(self) -> ToyLine:
        return ToyLine("".join(delta.text for delta in await whole(self._generation)), done=True)

    async def events(self) -> AsyncGenerator[bytes]:
        with closing(self._generation) as generation:
            async for delta in generation:
                yield NDJSON.event(msgspec.json.encode(ToyLine(delta.text, delta.finish is not None)))


def _parse(body: ToyRequest, context: RequestContext) -> list[GenerateRequest]:
    prompt = ChatPrompt([{"role": "user", "content": body.say}])
    return [body.request(context, prompt, max_tokens=body.limit)]


async def count_words(call: Call[ToyRequest]) -> ToyCount:
    """Count the words of a text."""
    return ToyCount(call.model.name, len(call.body.say.split()))


def _routers(services: Services) -> list[APIRouter]:
    router = APIRouter(tags=["toy"])

    @router.get("/api/toys", **describe(list[str]))
    async def list_toys() -> Response:
        return JSON([model.name for model in services.fleet.catalogue])

    return [router]


TOY = Dialect(
    tag="toy",
    endpoints=[
        Endpoint(
            paths=["/api/toy"],
            name="toy",
            description="One line of text.",
            body=ToyRequest,
            parse=_parse,
            answer=ToyAnswer,
            trace_kind="chat",
            responses=(ToyLine,),
            events=(ToyLine,),
        )
    ],
    routes=[Route(["/api/toy/words"], ToyRequest, ToyCount, count_words)],
    routers=_routers,
    permissions={"key": ["GET /api/toys"]},
    framing=NDJSON,
    prefixes=["/api/"],
    error_body=lambda error: {"error": error.message},
    error_schema=ToyFailure,
    schema_prefix="Toy",
    field_names={"messages": "say"},
)

# ── the tests ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Toy:
    runner: asyncio.Runner
    client: httpx.AsyncClient
    spans: InMemorySpanExporter

    def post(self, path: str = "/api/toy", **body: Any) -> httpx.Response:
        return self.runner.run(self.client.post(path, json=body))

    def get(self, path: str) -> httpx.Response:
        return self.runner.run(self.client.get(path))


@pytest.fixture(scope="module")
def toy() -> Iterator[Toy]:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    settings = load_settings(flags={"model_manager.model": "fake:"}, environ={})

    async def start() -> tuple[Fleet, httpx.AsyncClient]:
        fleet = Fleet(open_catalogue(settings.model_manager), Rules.of(settings.model_manager))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(application, "open_tracing", lambda: Tracing(provider))
            app = application.create_app(settings, fleet, lambda: settings, dialects=[*DIALECTS, TOY])
        return fleet, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60)

    with asyncio.Runner() as runner:
        fleet, client = runner.run(start())
        try:
            yield Toy(runner, client, spans)
        finally:
            runner.run(fleet.close())
            runner.run(client.aclose())


def test_a_whole_answer(toy: Toy) -> None:
    response = toy.post(say="say: hello", stream=False)
    assert (response.status_code, response.json()) == (200, {"text": "hello", "done": True})


def test_a_stream_of_lines(toy: Toy) -> None:
    response = toy.post(say="say: hello")
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert "".join(line["text"] for line in lines) == "hello"
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


def test_an_error_before_the_stream_has_a_status_and_the_shape_of_the_dialect(toy: Toy) -> None:
    response = toy.post(say="word " * 20_000)
    assert response.status_code == 400
    assert response.json().keys() == {"error"} and "tokens" in response.json()["error"]


def test_an_error_in_the_stream_is_a_line_of_the_same_shape(toy: Toy) -> None:
    response = toy.post(say="raise: x")
    assert response.status_code == 200
    last = json.loads(response.text.splitlines()[-1])
    assert last.keys() == {"error"}


@pytest.mark.parametrize("path", ["/api/toy", "/api/unknown"])
def test_an_unknown_route_under_the_prefix_has_that_shape_too(toy: Toy, path: str) -> None:
    response = toy.get(path)
    assert response.status_code == (405 if path == "/api/toy" else 404)
    assert response.json().keys() == {"error"} and isinstance(response.json()["error"], str)


def test_unknown_fields_are_named_and_known_ones_are_refused_or_dropped(toy: Toy) -> None:
    response = toy.post(say="say: x", stream=False, mood="glad", images=[], future=1)
    assert response.status_code == 200
    assert response.headers["x-paddock-ignored-fields"] == "future"
    assert "'images' is not supported" in toy.post(say="x", images=["a"]).json()["error"]
    assert "'messages' is not a parameter" in toy.post(say="x", messages=[]).json()["error"]
    chat = toy.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], say="x")
    assert (chat.status_code, chat.json()["error"]["param"]) == (400, "say")


def test_trace_kind(toy: Toy) -> None:
    toy.spans.clear()
    toy.post(say="say: x", stream=False)
    names = {span.name for span in toy.spans.get_finished_spans()}
    assert {"chat fake", "POST /api/toy"} <= names


def test_a_route_that_does_not_generate(toy: Toy) -> None:
    assert toy.post("/api/toy/words", say="one two").json() == {"model": "fake", "words": 2}
    refused = toy.post("/api/toy/words", say=2)
    assert (refused.status_code, refused.json().keys()) == (400, {"error"})
    operation = toy.get("/openapi.json").json()["paths"]["/api/toy/words"]["post"]
    assert operation["description"] == "Count the words of a text."


def test_other_routes(toy: Toy) -> None:
    assert toy.get("/api/toys").json() == ["fake"]


def test_openapi_describes_it(toy: Toy) -> None:
    document = toy.get("/openapi.json").json()
    operation = document["paths"]["/api/toy"]["post"]
    content = operation["responses"]["200"]["content"]
    assert operation["tags"] == ["toy"] and content.keys() == {"application/json", "application/x-ndjson"}
    schema = {**content["application/x-ndjson"]["schema"], "components": document["components"]}
    for line in toy.post(say="say: x").text.splitlines():
        jsonschema.validate(json.loads(line), schema)
    failed = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
    jsonschema.validate(toy.post(say=1).json(), {**failed, "components": document["components"]})

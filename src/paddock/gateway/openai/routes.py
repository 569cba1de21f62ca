from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.fleet import Fleet
from paddock.gateway.bodies import describe_body, read_body
from paddock.gateway.openai import completions
from paddock.gateway.openai.chat import ChatAnswer, to_generate
from paddock.gateway.openai.schema import ChatCompletionRequest, CompletionRequest, ModelCard, ModelList
from paddock.gateway.responses import JSON
from paddock.gateway.sse import EventStream


def openai_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.get("/models")
    async def list_models() -> Response:
        cards = [
            ModelCard(id=model.name, created=model.created, kind=await fleet.kind(model)) for model in fleet.catalogue
        ]
        return JSON(ModelList(data=cards))

    @router.post("/chat/completions", openapi_extra=describe_body(ChatCompletionRequest))
    async def create_chat_completion(request: Request) -> Response:
        body = await read_body(request, ChatCompletionRequest, limit=max_body)
        model = fleet.catalogue.find(body.model)
        generation = await fleet.generate(model, lambda id: to_generate(body, id))
        answer = ChatAnswer(body, model.name, generation.fingerprint)
        if body.stream:
            return EventStream(answer.events(generation))
        return JSON(await answer.whole(generation))

    @router.post("/completions", openapi_extra=describe_body(CompletionRequest))
    async def create_completion(request: Request) -> Response:
        body = await read_body(request, CompletionRequest, limit=max_body)
        model = fleet.catalogue.find(body.model)
        answer = completions.CompletionAnswer(body, model.name, await completions.start(body, fleet, model))
        if body.stream:
            return EventStream(answer.events())
        return JSON(await answer.whole())

    return router

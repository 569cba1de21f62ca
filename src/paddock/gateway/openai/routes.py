from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.fleet import Fleet
from paddock.gateway.bodies import read_body
from paddock.gateway.openai.chat import ChatAnswer, to_generate
from paddock.gateway.openai.schema import ChatCompletionRequest, ModelCard, ModelList
from paddock.gateway.responses import JSON
from paddock.gateway.sse import EventStream


def openai_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.get("/models")
    async def list_models() -> Response:
        return JSON(ModelList(data=[ModelCard(id=model.name, created=model.created) for model in fleet.catalogue]))

    @router.post("/chat/completions", openapi_extra=_body(ChatCompletionRequest))
    async def create_chat_completion(request: Request) -> Response:
        body = await read_body(request, ChatCompletionRequest, limit=max_body)
        model = fleet.catalogue.find(body.model)
        generation = await fleet.generate(model, lambda id: to_generate(body, id))
        answer = ChatAnswer(body, model.name, generation.fingerprint)
        if body.stream:
            return EventStream(answer.events(generation))
        return JSON(await answer.whole(generation))

    return router


def _body(schema: type[ChatCompletionRequest]) -> dict[str, object]:
    """Tells OpenAPI what `read_body` reads."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}

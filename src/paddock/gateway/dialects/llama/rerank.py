"""`POST /v1/rerank`: scores documents by their relevance to a query."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import Field, PlainValidator, StringConstraints

from paddock.gateway.generation.endpoint import Call, Route
from paddock.gateway.generation.fields import LARGEST, ModelFields
from paddock.gateway.generation.vectors import PooledUsage, floats, pool, usage_of
from paddock.gateway.http.sizes import MOST_DOCUMENTS
from paddock.types import PairPrompt


def _text(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"text"}:
        value = value["text"]
    if not isinstance(value, str):
        raise ValueError('a document is a text, or an object with its "text"')
    return value


Document = Annotated[str, PlainValidator(_text, json_schema_input_type=str | dict[Literal["text"], str])]


class RerankRequest(ModelFields):
    query: Annotated[str, StringConstraints(min_length=1)]
    documents: list[Document] = Field(min_length=1, max_length=MOST_DOCUMENTS)
    top_n: int | None = Field(None, ge=1, le=LARGEST)
    return_documents: bool | None = None


class DocumentText(msgspec.Struct):
    text: str


class Ranked(msgspec.Struct, kw_only=True):
    index: int
    relevance_score: float
    document: DocumentText | msgspec.UnsetType = msgspec.UNSET


class RankedList(msgspec.Struct, kw_only=True):
    model: str
    object: Literal["list"] = "list"
    usage: PooledUsage
    results: list[Ranked]


async def rerank(call: Call[RerankRequest]) -> RankedList:
    """The documents by their scores, the best first; `index` is a document's place in the request."""
    body = call.body
    pairs = [PairPrompt(body.query, document) for document in body.documents]
    pooled = await pool(call, "reranking", pairs, "documents")
    results = [
        Ranked(
            index=index,
            relevance_score=floats(data)[0],
            document=DocumentText(body.documents[index]) if body.return_documents else msgspec.UNSET,
        )
        for index, data in enumerate(pooled.vectors)
    ]
    results.sort(key=lambda ranked: -ranked.relevance_score)
    return RankedList(model=body.model or call.model.name, usage=usage_of(pooled), results=results[: body.top_n])


RERANK_ROUTE: Final = Route(["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"], RerankRequest, RankedList, rerank)

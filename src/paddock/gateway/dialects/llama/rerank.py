"""`POST /v1/rerank`: scores documents by their relevance to a query."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import Field, PlainValidator, StringConstraints, model_validator

from paddock.errors import InvalidRequest
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


Documents = Annotated[list[Document], Field(min_length=1, max_length=MOST_DOCUMENTS)]


class RerankRequest(ModelFields):
    query: Annotated[str, StringConstraints(min_length=1)]
    documents: Documents | None = None
    top_n: int | None = Field(None, ge=1, le=LARGEST)
    return_documents: bool | None = None
    texts: Documents | None = None
    """The documents in the API of TEI (Text Embeddings Inference). The answer then has its shape."""
    return_text: bool | None = None
    """TEI's `return_documents`."""

    @model_validator(mode="after")
    def _one_list(self) -> RerankRequest:
        if (self.documents is None) == (self.texts is None):
            raise InvalidRequest('"documents" or "texts" must be provided, and not both', param="documents")
        if self.texts is None and self.return_text is not None:
            raise InvalidRequest("return_text belongs to texts: use return_documents", param="return_text")
        if self.texts is not None and self.return_documents is not None:
            raise InvalidRequest("return_documents belongs to documents: use return_text", param="return_documents")
        return self


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


class RankedText(msgspec.Struct, kw_only=True):
    """A document in TEI's shape."""

    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET


async def rerank(call: Call[RerankRequest]) -> RankedList | list[RankedText]:
    """The documents by their scores, the best first; `index` is a document's place in the request."""
    body = call.body
    is_tei = body.documents is None
    documents: list[str] = body.documents or body.texts or []
    pairs = [PairPrompt(body.query, document) for document in documents]
    pooled = await pool(call, "reranking", pairs, "texts" if is_tei else "documents")
    scores = [floats(data)[0] for data in pooled.vectors]
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    if is_tei:
        return [
            RankedText(index=index, score=scores[index], text=documents[index] if body.return_text else msgspec.UNSET)
            for index in best
        ]
    results = [
        Ranked(
            index=index,
            relevance_score=scores[index],
            document=DocumentText(documents[index]) if body.return_documents else msgspec.UNSET,
        )
        for index in best
    ]
    return RankedList(model=body.model or call.model.name, usage=usage_of(pooled), results=results)


RERANK_ROUTE: Final = Route(
    ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"], RerankRequest, RankedList | list[RankedText], rerank
)

from __future__ import annotations

from fastapi import APIRouter

from paddock.config import ServerSettings
from paddock.fleet import Fleet
from paddock.gateway.dialects.llama.completion import completion_routes
from paddock.gateway.dialects.llama.embedding import native_embedding_routes
from paddock.gateway.dialects.llama.lora import lora_routes
from paddock.gateway.dialects.llama.props import props_routes
from paddock.gateway.dialects.llama.rerank import rerank_routes
from paddock.gateway.dialects.llama.slots import slot_routes
from paddock.gateway.dialects.llama.text import text_routes


def native_routes(fleet: Fleet, settings: ServerSettings) -> list[APIRouter]:
    """First those whose answer takes no longer than finding them. Not one router: each level would be matched anew."""
    return [
        text_routes(fleet, max_body=settings.max_body_bytes),
        completion_routes(fleet, max_body=settings.max_body_bytes),
        native_embedding_routes(fleet, max_body=settings.max_body_bytes),
        rerank_routes(fleet, max_body=settings.max_body_bytes),
        slot_routes(fleet, settings),
        props_routes(fleet, settings),
        lora_routes(fleet, max_body=settings.max_body_bytes),
    ]

"""Applies normalizers to the system messages of a request (`paddock.normalizers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from paddock.fleet import Model
from paddock.gateway.generation.fields import GenerationFields
from paddock.normalizers import NORMALIZERS, Rule
from paddock.types import ChatPrompt, GenerateRequest, Prompt


def names_for(body: GenerationFields, model: Model) -> Sequence[str]:
    """The normalizers of a request: its own, or those of the model. A deterministic request has only its own, because
    the answer must depend on nothing but the request.
    """
    if body.normalize is not None:
        return body.normalize
    is_deterministic = body.deterministic or model.settings.is_deterministic
    return () if is_deterministic else model.settings.normalize


def normalized_requests(
    requests: Sequence[GenerateRequest], names: Sequence[str]
) -> tuple[Sequence[GenerateRequest], list[str]]:
    """The requests, and the names of the normalizers that changed one."""
    if not names:
        return requests, []
    acted: dict[str, None] = {}
    changed: list[GenerateRequest] = []
    for request in requests:
        prompt, by = normalized(request.prompt, names)
        acted |= dict.fromkeys(by)
        changed.append(msgspec.structs.replace(request, prompt=prompt) if by else request)
    return changed, list(acted)


def normalized(prompt: Prompt, names: Sequence[str]) -> tuple[Prompt, list[str]]:
    """The prompt, and the names of the normalizers that changed it. Only conversations have system messages."""
    if not isinstance(prompt, ChatPrompt):
        return prompt, []
    messages, acted = prompt.messages, []
    for name in names:
        changed = [_message(message, NORMALIZERS[name].rule) for message in messages]
        if changed != messages:
            acted.append(name)
            # A message that had nothing but what was dropped is dropped too, unless it is the only one.
            messages = [message for message in changed if not _is_empty(message)] or changed
    return (msgspec.structs.replace(prompt, messages=messages) if acted else prompt), acted


def _is_empty(message: dict[str, Any]) -> bool:
    return message.get("role") == "system" and not message.get("content")


def _message(message: dict[str, Any], rule: Rule) -> dict[str, Any]:
    content = message.get("content")
    if message.get("role") != "system" or not content:
        return message
    if isinstance(content, str):
        changed = "\n".join(rule([content]))
        return message if changed == content else message | {"content": changed}
    texts = [part["text"] for part in content]
    if (kept := rule(texts)) == texts:
        return message
    return message | {"content": [{"type": "text", "text": text} for text in kept]}

"""Prompts and tools."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may ask the client to call."""

    name: str
    parameters: dict[str, Any]
    """A JSON schema of an object."""
    description: str = ""
    strict: bool = False
    """A call must match the schema even if the model is free not to call anything."""


MediaKind = Literal["image", "audio"]


class MediaFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of a prompt, as the client sent it. The gateway looks at nothing of it."""

    kind: MediaKind | Literal["any"]
    data: str
    """Base64."""
    param: str
    """The field of the HTTP request that holds it, for error messages."""
    content: bytes | None = None
    """The file itself, instead of `data`."""
    url: str = ""
    """Where the gateway gets the file. Empty in what a worker receives."""


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat", omit_defaults=True):
    """Messages that the model's chat template renders."""

    messages: list[dict[str, Any]]
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    function: str = ""
    """The function that must be called; empty: any."""
    parallel_calls: bool = True
    """Allow more than one call."""
    ending: Literal["reply", "continue", "none"] = "reply"
    """What follows the messages: the start of a reply, the rest of the last message, or nothing."""
    thinking: bool | None = None
    """None: as with llama-server's `enable_thinking`, on if the template can turn it on and off."""
    thinking_budget: int | None = None
    """The most tokens of reasoning. The server then ends the reasoning."""
    budget_message: str = ""
    """The end of reasoning that the budget cuts."""
    split_reasoning: bool = True
    parse_reply: bool = True
    """If false, the whole reply is content."""
    template_options: dict[str, Any] = {}
    """Additional variables for the template."""
    template: str = ""
    """A Jinja template to use instead of the model's own."""
    date: str = ""
    """The date for templates that print one, as 2026-11-19. Empty: today."""
    media: tuple[MediaFile, ...] = ()
    """The files of the messages' parts of type `media`, in the order of the parts."""


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    tokens: list[int]


class MixedPrompt(msgspec.Struct, frozen=True, tag="mixed"):
    """Texts and token ids in sequence."""

    parts: list[str | int]


class MediaPrompt(msgspec.Struct, frozen=True, tag="media"):
    """Texts with a file between every two of them."""

    texts: list[str]
    media: tuple[MediaFile, ...]


class InfillPrompt(msgspec.Struct, frozen=True, omit_defaults=True, tag="infill"):
    """The text before and after a gap that the model fills."""

    prefix: str
    suffix: str
    extra: list[tuple[str, str]] = []
    """The names and texts of other files."""
    params: tuple[str, str] = ("prompt", "suffix")
    """The request's fields for prefix and suffix, for error messages."""
    suffix_first: bool = False
    """The suffix comes before the prefix."""


class InfillTokens(msgspec.Struct, frozen=True):
    """The special tokens before the prefix, the suffix and the middle. A model that was trained on whole repositories
    also has tokens before the name of a repository and before the name of a file.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


Prompt = ChatPrompt | TextPrompt | TokenPrompt | MixedPrompt | MediaPrompt | InfillPrompt


class PairPrompt(msgspec.Struct, frozen=True, tag="pair"):
    """A query and a document to rank for it."""

    query: str
    document: str

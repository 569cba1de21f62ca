"""What a model is given to read."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may ask its client to call."""

    name: str
    parameters: dict[str, Any]
    """A JSON schema of an object."""
    description: str = ""
    strict: bool = False
    """A call must keep to the schema even where the model is free not to call anything."""


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat", omit_defaults=True):
    """Messages to be rendered by the model's own chat template."""

    messages: list[dict[str, Any]]
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    function: str = ""
    """The one that must be called; empty for any."""
    parallel_calls: bool = True
    """Whether there may be more than one call."""
    ending: Literal["reply", "continue", "none"] = "reply"
    """What comes after the messages: the beginning of a reply, the rest of the last message, or nothing."""
    thinking: bool | None = None
    """None leaves it to the template."""
    thinking_budget: int | None = None
    """A thought of so many tokens is brought to its end."""
    split_reasoning: bool = True
    template_options: dict[str, Any] = {}
    """Further variables of the template."""


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    tokens: list[int]


class MixedPrompt(msgspec.Struct, frozen=True, tag="mixed"):
    """Texts and token ids, one after another."""

    parts: list[str | int]


class InfillPrompt(msgspec.Struct, frozen=True, omit_defaults=True, tag="infill"):
    """What stands before and after the text that is asked for."""

    prefix: str
    suffix: str
    extra: list[tuple[str, str]] = []
    """Names and texts of other files."""
    params: tuple[str, str] = ("prompt", "suffix")
    """The request's fields for the two, to be named should one be refused."""


class InfillTokens(msgspec.Struct, frozen=True):
    """The tokens that stand before a prefix, before a suffix, and before what belongs between them; and, where the
    model was shown whole repositories, before the name of one and before the name of each of its files.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


Prompt = ChatPrompt | TextPrompt | TokenPrompt | MixedPrompt | InfillPrompt


class PairPrompt(msgspec.Struct, frozen=True, tag="pair"):
    """A question and a text that may answer it, to be judged together."""

    query: str
    document: str

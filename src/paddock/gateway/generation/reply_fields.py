"""The fields that say how a reply of a conversation starts, and how it is parsed."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, Field

from paddock.gateway.http import sizes
from paddock.gateway.http.fields import BodyFields


def _date(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError("expected a date such as 2026-11-19") from None


class ReplyFields(BodyFields):
    """llama-server's fields and options for reasoning and parsing. All can have defaults for a model."""

    reasoning_format: Literal["auto", "deepseek", "deepseek-legacy", "none"] | None = None
    """As in llama-server: `none` leaves the reasoning in the content, `deepseek-legacy` does so in streams."""
    thinking_budget_tokens: int | None = Field(
        None,
        ge=-1,
        le=sizes.LARGEST_INTEGER,
        validation_alias=AliasChoices("thinking_budget_tokens", "reasoning_budget_tokens", "reasoning_budget"),
    )
    """The most tokens of reasoning; -1: unlimited, 0: no reasoning."""
    reasoning_budget_message: str | None = Field(None, max_length=sizes.LONGEST_BUDGET_MESSAGE)
    """The end of reasoning that the budget cuts."""
    preserve_reasoning: bool | None = None
    """Paddock's own, for llama-server's option: show the model the reasoning of earlier turns, if the template can. By
    default true.
    """
    prefill_assistant: bool | None = None
    """Paddock's own, for llama-server's option: continue a last message of the assistant. By default true."""
    skip_chat_parsing: bool | None = None
    """Paddock's own, for llama-server's option: the whole reply is content, with reasoning and calls as text."""
    template_date: Annotated[str, AfterValidator(_date), Field(max_length=10)] | None = None
    """Paddock's own: the date for chat templates that print one, as 2026-11-19. By default today."""

    def reply_options(self, *, stream: bool, budget: int | None = None) -> dict[str, Any]:
        """The fields of a `ChatPrompt` that they stand for. `budget` is the dialect's own field for a budget."""
        given = self.thinking_budget_tokens if budget is None else budget
        inline = "none", *(["deepseek-legacy"] if stream else [])
        return {
            "thinking_budget": None if given == -1 else given,
            "budget_message": self.reasoning_budget_message or "",
            "split_reasoning": self.reasoning_format not in inline,
            "parse_reply": not self.skip_chat_parsing,
            "date": self.template_date or "",
        }

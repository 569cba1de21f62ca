"""What every dialect's conversations have in common: tools that may or must be called, and thinking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, StringConstraints

from paddock.errors import InvalidRequest, PaddockError
from paddock.types import ChatPrompt, Constraint, Tool


def portable(value: Any) -> Any:
    """JSON that can be sent to a worker."""
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, ValueError, RecursionError):
        raise ValueError("a number is too large, or a text is not valid") from None
    return value


JSONObject = Annotated[dict[str, Any], AfterValidator(portable)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""What a function takes of which nothing is said."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and what it asks about calling them."""

    tools: Sequence[Tool] = ()
    choice: Literal["none", "auto", "required", "function"] = "auto"
    function: str = ""
    """The one that must be called, where the choice is a function."""
    parallel: bool = True

    def check(self, constraints: Sequence[Constraint], *, name_at: str) -> None:
        """Refuse what contradicts itself. `name_at` is where the dialect has the name of the tool number `{}`."""
        names = [tool.name for tool in self.tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequest(f"there are two functions named {name}", param=name_at.format(index))
        if self.choice == "required" and not names:
            raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
        if self.choice == "function" and self.function not in names:
            raise InvalidRequest(f"there is no tool named {self.function}", param="tool_choice")
        # A schema says what content must look like, and a forced call has none: OpenAI's clients send both. A grammar
        # or an expression is about the whole reply.
        whole = [constraint for constraint in constraints if constraint.kind != "json_schema"]
        if self.choice in ("required", "function") and whole:
            raise InvalidRequest(
                f"{whole[0].param} is about the whole reply, but tool_choice asks for a call: send one of them",
                param="tool_choice",
            )

    def prompt(self, messages: list[dict[str, Any]], **more: Any) -> ChatPrompt:
        """The conversation as the model's template will be given it."""
        return ChatPrompt(
            messages,
            tools=() if self.choice == "none" else tuple(self.tools),
            must_call=self.choice in ("required", "function"),
            function=self.function if self.choice == "function" else "",
            parallel_calls=self.parallel,
            **more,
        )


def thinks(effort: Effort | None) -> bool | None:
    """Whether an effort asks for thinking; None leaves it to the model."""
    return None if effort is None else effort != "none"


@contextmanager
def in_the_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """Errors name fields of chat completions; a dialect that calls them differently says how."""
    try:
        yield
    except PaddockError as error:
        if error.param is not None:
            error.param = names.get(error.param, error.param)
        raise

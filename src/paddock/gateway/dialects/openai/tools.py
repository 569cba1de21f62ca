"""Tools in the bodies of chat completions: definitions, the choice, and earlier calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import model_validator

from paddock.gateway.generation.conversation import (
    FunctionName,
    JSONObject,
    ToolUse,
    call_arguments,
    function_tool,
    tool_call,
)
from paddock.gateway.http.fields import Fields
from paddock.types import Tool


class CalledFunction(Fields):
    name: str
    arguments: str
    """The JSON of an object."""

    @model_validator(mode="after")
    def _check_arguments(self) -> CalledFunction:
        call_arguments(self.arguments)
        return self


class EarlierCall(Fields):
    """A tool call in an earlier message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Its index in a stream; some clients send it back."""

    def rendered(self) -> dict[str, Any]:
        return tool_call(self.id, self.function.name, call_arguments(self.function.arguments))


class Function(Fields):
    name: FunctionName
    description: str | None = None
    parameters: JSONObject | None = None
    strict: bool | None = None


class FunctionTool(Fields):
    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        return function_tool(self.function, strict=bool(self.function.strict))


class ChosenFunction(Fields):
    name: str


class NamedToolChoice(Fields):
    type: Literal["function"]
    function: ChosenFunction

    @property
    def name(self) -> str:
        return self.function.name


def openai_tool_use(tools: Sequence[Tool], choice: Any, parallel: bool | None) -> ToolUse:
    """What `tools`, `tool_choice` (a word, or an object that names a function) and `parallel_tool_calls` request."""
    named = hasattr(choice, "name")
    return ToolUse(
        tools,
        "function" if named else choice or "auto",
        choice.name if named else "",
        parallel is not False,
    )

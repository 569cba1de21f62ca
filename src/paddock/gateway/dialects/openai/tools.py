"""Tools in OpenAI's requests: what may be called, what must be, and what has been."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Tag, model_validator

from paddock.gateway.generation.conversation import NO_PARAMETERS, FunctionName, JSONObject, portable
from paddock.gateway.generation.fields import Fields
from paddock.gateway.http.sizes import is_too_deep
from paddock.types import Tool


def call_arguments(text: str) -> dict[str, Any] | None:
    """What an earlier call was made with, from its JSON; None where that is no object, or one that is too deep."""
    try:
        found = portable(msgspec.json.decode(text or "{}"))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and not is_too_deep(found) else None


class CalledFunction(Fields):
    name: str
    arguments: str
    """The JSON of an object."""

    @model_validator(mode="after")
    def _is_an_object(self) -> CalledFunction:
        if call_arguments(self.arguments) is None:
            raise ValueError("arguments must be the JSON text of an object")
        return self


class MadeCall(Fields):
    """A tool call in an earlier message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Where it stood in a stream; some clients send it back."""

    def rendered(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": call_arguments(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class Function(Fields):
    name: FunctionName
    description: str | None = None
    parameters: JSONObject | None = None
    strict: bool | None = None


class FunctionTool(Fields):
    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        function = self.function
        return Tool(
            function.name,
            function.parameters or NO_PARAMETERS,
            function.description or "",
            strict=bool(function.strict),
        )


class ChosenFunction(Fields):
    name: str


class NamedToolChoice(Fields):
    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(word)")] | Annotated[NamedToolChoice, Tag("(function)")],
    Discriminator(lambda value: "(word)" if isinstance(value, str) else "(function)"),
]

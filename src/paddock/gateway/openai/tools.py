"""Tools in OpenAI's requests: what may be called, what must be, and what has been."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, Discriminator, StringConstraints, Tag, model_validator

from paddock.gateway.fields import Fields
from paddock.types import Tool


def _portable(value: Any) -> Any:
    """JSON that can be sent to a worker."""
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, ValueError, RecursionError):
        raise ValueError("a number is too large, or a text is not valid") from None
    return value


JSONObject = Annotated[dict[str, Any], AfterValidator(_portable)]


class CalledFunction(Fields):
    name: str
    arguments: str
    """The JSON of an object."""

    @model_validator(mode="after")
    def _is_an_object(self) -> CalledFunction:
        if not isinstance(self.object, dict):
            raise ValueError("arguments must be the JSON text of an object")
        return self

    @property
    def object(self) -> Any:
        try:
            return _portable(msgspec.json.decode(self.arguments or "{}"))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None


class MadeCall(Fields):
    """A tool call in an earlier message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Where it stood in a stream; some clients send it back."""

    def rendered(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.object}
        return {"id": self.id, "type": "function", "function": function}


FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]


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
            function.parameters or {"type": "object", "properties": {}, "additionalProperties": False},
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

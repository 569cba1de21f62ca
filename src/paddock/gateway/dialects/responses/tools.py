"""Tools in the bodies of response requests: functions, namespaces of functions, and tools that servers run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag

from paddock.errors import InvalidRequest
from paddock.gateway.generation.conversation import FunctionName, JSONObject, by_field, function_tool
from paddock.gateway.http.fields import Fields
from paddock.gateway.http.sizes import MOST_TOOLS
from paddock.types import Tool


class ResponseFunction(Fields):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: JSONObject | None = None
    strict: bool | None = None

    def tool(self, namespace: str | None = None) -> Tool:
        tool = function_tool(self, strict=self.strict is not False)
        return Tool(full_name(namespace, tool.name), tool.parameters, tool.description, strict=tool.strict)


class Namespace(Fields):
    """Functions whose calls name the namespace too. Codex groups its tools and those of MCP servers like this."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    """No effect: each function has its own description."""
    tools: list[ResponseFunction] = Field(max_length=MOST_TOOLS)


class WebSearch(Fields):
    """A search that OpenAI's servers run. Agents offer it beside their own tools: then it is left out, and the response
    header names it.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal["web_search"]


ResponseTool = Annotated[
    Annotated[ResponseFunction, Tag("(function)")]
    | Annotated[Namespace, Tag("(namespace)")]
    | Annotated[WebSearch, Tag("(web_search)")],
    by_field("type", "function", "namespace", "web_search"),
]


def full_name(namespace: str | None, name: str) -> str:
    """The name of a function in the prompt: models know no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


def functions(tools: Sequence[Any] | None) -> Iterator[tuple[str, str | None, ResponseFunction]]:
    """Every function, with its path in the request and its namespace."""
    for at, tool in enumerate(tools or ()):
        match tool:
            case ResponseFunction():
                yield f"tools[{at}]", None, tool
            case Namespace():
                for place, function in enumerate(tool.tools):
                    yield f"tools[{at}].tools[{place}]", tool.name, function


def check_tools(tools: Sequence[Any] | None) -> None:
    """Refuse two functions of one name, too many functions, and a search that has no function beside it: a request
    with such a search is a request to search.
    """
    names: set[str] = set()
    for path, namespace, function in functions(tools):
        name = full_name(namespace, function.name)
        if name in names:
            raise InvalidRequest(f"there are two functions named {name}", param=f"{path}.name")
        names.add(name)
    if len(names) > MOST_TOOLS:
        raise InvalidRequest(f"there are {len(names)} functions; the limit is {MOST_TOOLS}", param="tools")
    at = next((at for at, tool in enumerate(tools or ()) if isinstance(tool, WebSearch)), None)
    if at is not None and not names:
        raise InvalidRequest(
            "this server runs no tools, so web_search is allowed only beside functions", param=f"tools[{at}].type"
        )

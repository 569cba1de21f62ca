"""What a reply may look like, as a grammar: thoughts first, then calls that keep to their schemas, or content that
keeps to its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paddock.errors import InvalidRequest
from paddock.text.reply.formats import BracedCalls, Calls, Format, NamedCalls, ObjectCalls, TaggedCalls
from paddock.types import Constraint, Tool

# What says no more of a text than that it is one.
_NOTES = frozenset({"type", "title", "description", "default", "examples", "example", "deprecated"})
# What would say of several arguments together.
_NOT_BY_TAGS = frozenset(
    {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"minProperties", "maxProperties", "propertyNames", "enum", "const"}
)
# What may name further properties.
_OPEN = frozenset({"additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf", "if"})
_SPECIAL = frozenset(r".^$*+?()[]{}|\/")


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What is asked of a reply."""

    must_call: bool = False
    function: str = ""
    """The one to be called; empty for any."""
    parallel_calls: bool = True
    body: Constraint | None = None
    """What content must look like."""
    thoughts: Literal["none", "possible", "begun"] = "none"


def reply_constraint(
    format: Format, tools: Sequence[Tool], rules: ReplyRules, literal: Callable[[str], str]
) -> Constraint | None:
    """One grammar for all of it, or None where a reply is free. `literal` writes a marker for Lark: some markers are
    tokens that no text can spell.

    A reply that may be anything is held to the format once it begins a call, where the beginning can be told.
    """
    calls = format.calls
    if not tools and (rules.body is None or (rules.thoughts == "none" and not format.content_opening)):
        return rules.body
    if tools and not rules.must_call and rules.body is None and not _can_be_told(format):
        return None
    grammar = _Grammar(literal)
    alternatives: list[str] = []
    if tools:
        called = [tool for tool in tools if rules.function in ("", tool.name)]
        for index, tool in enumerate(called):
            alternatives.append(grammar.rule(f"call{index}", _call(grammar, calls, tool, tools.index(tool))))
        grammar.rule("call", " | ".join(alternatives))
    start = _start(grammar, format, rules, has_tools=bool(tools))
    grammar.rule("start", " ".join(filter(None, (_thoughts(grammar, format, rules), start))))
    param = rules.body.param if rules.body is not None and not tools else "tools"
    return Constraint("lark", grammar.source, param, tuple(grammar.parts))


def _can_be_told(format: Format) -> bool:
    """Whether a call can be told from any other reply by its beginning, and enforced from there on."""
    calls = format.calls
    begins = (calls.begin or calls.opening).strip()
    return bool(begins) and begins != format.lead and not isinstance(calls, BracedCalls)


@dataclass(slots=True)
class _Grammar:
    literal: Callable[[str], str]
    parts: list[Constraint] = field(default_factory=list)
    rules: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return "\n".join(f"{name}: {rule}" for name, rule in self.rules.items())

    def rule(self, name: str, text: str) -> str:
        self.rules[name] = text
        return name.partition("[")[0]

    def part(self, constraint: Constraint) -> str:
        self.parts.append(constraint)
        return f"@part{len(self.parts) - 1}"

    def written(self, marker: str) -> str:
        return self.literal(marker) if marker else ""

    def until(self, marker: str) -> str:
        """Any text up to and with the marker."""
        if self._is_token(marker):
            return f"{self.rule('ANY', '/(?s:.+)/')}? {self.written(marker)}"
        return self.rule(f"until{len(self.rules)}[lazy]", f"/(?s:.*){_escaped(marker)}/")

    def free(self, marker: str) -> str:
        """Any text without the marker."""
        if self._is_token(marker):
            return self.rule("ANY", "/(?s:.+)/") + "?"
        text = _escaped(marker)
        return self.rule(f"FREE{len(self.rules)}", f"/(?s:.+)/ & ~/(?s:.*){text}(?s:.*)/") + "?"

    def _is_token(self, marker: str) -> bool:
        return not self.literal(marker).startswith('"')


def _start(grammar: _Grammar, format: Format, rules: ReplyRules, *, has_tools: bool) -> str:
    """What follows the thoughts."""
    body = ""
    if rules.body is not None:
        body = f"{grammar.written(format.content_opening)} {grammar.part(rules.body)}"
    if not has_tools:
        return body
    calls = format.calls
    written = _all_calls(grammar, calls, rules, after=format.lead)
    if rules.must_call:
        return written
    if body:
        return f"({written} | {body})"
    trigger = calls.triggers[0]
    later = _all_calls(grammar, calls, rules, after=trigger)
    return f"({grammar.free(trigger)} | {grammar.until(trigger)} {later})"


def _thoughts(grammar: _Grammar, format: Format, rules: ReplyRules) -> str:
    reasoning = format.reasoning
    if reasoning is None or rules.thoughts == "none":
        return ""
    grammar.rule("GAP", r"/[ \n]{1,8}/")
    rest = f"{grammar.until(reasoning.closing)} GAP? {grammar.written(format.turn)}"
    return rest if rules.thoughts == "begun" else f"({grammar.written(reasoning.opening)} {rest})?"


def _all_calls(grammar: _Grammar, calls: Calls, rules: ReplyRules, *, after: str) -> str:
    """All calls, from `after` on, which has been said."""
    array = isinstance(calls, ObjectCalls) and calls.array
    head = calls.begin + calls.opening + "[" * array
    between = (calls.separator or ", " * array) + calls.opening
    more = "" if not rules.parallel_calls or rules.function else f"({grammar.written(between)} call)*"
    tail = "]" * array + calls.end
    return " ".join(filter(None, (grammar.written(head.removeprefix(after)), "call", more, grammar.written(tail))))


def _call(grammar: _Grammar, calls: Calls, tool: Tool, place: int) -> str:
    """One call of this function, after its opening."""
    param = f"tools[{place}].function.parameters"
    match calls:
        case ObjectCalls(keyed=True):
            before, after = f"{{{json.dumps(tool.name)}: ", "}"
        case ObjectCalls():
            name, key = json.dumps(tool.name), json.dumps(calls.arguments_key)
            before, after = f"{{{json.dumps(calls.name_key)}: {name}, {key}: ", "}"
        case NamedCalls():
            return _named(grammar, calls, tool, param)
        case TaggedCalls():
            return _tagged(grammar, calls, tool, param)
        case _:
            raise InvalidRequest("this model writes arguments in a way that cannot be enforced", param="tool_choice")
    arguments = grammar.part(_arguments(tool.parameters, param))
    return f"{grammar.written(before)} {arguments} {grammar.written(after + calls.closing)}"


def _named(grammar: _Grammar, calls: NamedCalls, tool: Tool, param: str) -> str:
    before, number, after = calls.header.replace("{name}", tool.name).partition("{number}")
    header = [grammar.written(before), "/[0-9]{1,9}/" if number else "", grammar.written(after)]
    arguments = grammar.part(_arguments(tool.parameters, param))
    return " ".join(filter(None, (*header, arguments, grammar.written(calls.closing))))


def _tagged(grammar: _Grammar, calls: TaggedCalls, tool: Tool, param: str) -> str:
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or set(required) - properties.keys():
        raise InvalidRequest("this model needs every argument named among the properties", param=param)
    if more := tool.parameters.keys() & _NOT_BY_TAGS:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes arguments", param=param)
    shared = {name: tool.parameters[name] for name in tool.parameters.keys() & {"$defs", "definitions"}}
    text = [grammar.written(tool.name + calls.name_end)]
    for name, schema in properties.items():
        argument = _tagged_argument(grammar, calls, name, schema, shared, f"{param}.properties.{name}")
        text.append(argument if name in required else f"({argument})?")
    return " ".join([*text, grammar.written(calls.closing)])


def _tagged_argument(
    grammar: _Grammar, calls: TaggedCalls, name: str, schema: Any, shared: dict[str, Any], param: str
) -> str:
    is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
    opening = calls.key_opening + name + calls.key_closing
    opening += calls.value_opening.replace("{text}", "true" if is_text else "false")
    if not is_text:
        schema = {**shared, **schema} if isinstance(schema, dict) else schema
        value = grammar.part(Constraint("json_schema", json.dumps(schema), param))
        return f"{grammar.written(opening)} {value} {grammar.written(calls.value_closing)}"
    if schema.keys() <= _NOTES | {"enum"} and "enum" in schema:
        words = [grammar.written(word + calls.value_closing) for word in schema["enum"] if isinstance(word, str)]
        return f"{grammar.written(opening)} ({' | '.join(words)})"
    if more := schema.keys() - _NOTES:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes texts", param=param)
    # Up to where the parser sees the end, which needs no line of its own.
    end = calls.value_closing.strip()
    after = grammar.written(calls.value_closing.partition(end)[2])
    return f"{grammar.written(opening)} {grammar.until(end)} {after}"


def _arguments(schema: dict[str, Any], param: str) -> Constraint:
    """The schema of a function's arguments: an object whether it says so or not, with no more than what it names."""
    closed = {} if schema.keys() & _OPEN or "properties" not in schema else {"additionalProperties": False}
    return Constraint("json_schema", json.dumps({"type": "object", **closed, **schema}), param)


def _escaped(text: str) -> str:
    """A text as a regular expression between slashes."""
    return "".join("\\" + letter if letter in _SPECIAL else letter.replace("\n", r"\n") for letter in text)

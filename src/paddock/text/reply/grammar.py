"""What a reply may look like, as a grammar: thoughts first, then calls that keep to their schemas, or content that
keeps to its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paddock.errors import InvalidRequest
from paddock.text.reply.formats import BracedCalls, Calls, Format, NamedCalls, ObjectCalls, TaggedCalls
from paddock.types import Constraint, Tool

# What says no more of a text than that it is one.
_NOTES = frozenset({"type", "title", "description", "default", "examples", "example", "deprecated"})
# What would say of several arguments together.
_NOT_BY_ONE = frozenset(
    {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"minProperties", "maxProperties", "propertyNames", "enum", "const"}
)
# What may name further properties.
_OPEN = frozenset({"additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf", "if"})
_PLAIN_NAME = re.compile(r"[\w.$-]+")
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


class Spelling(Protocol):
    """How Lark writes what a vocabulary has: some markers are control tokens, which no text can spell."""

    def literal(self, marker: str) -> str: ...

    def controls_but(self, marker: str) -> str:
        """Any control token that is not part of the marker and ends no answer; nothing where there is none."""
        ...


def reply_constraint(format: Format, tools: Sequence[Tool], rules: ReplyRules, spelling: Spelling) -> Constraint | None:
    """One grammar for all of it, or None where a reply is free.

    A reply that may be anything is held to the format once it begins a call, where the beginning can be told.
    """
    calls = format.calls
    if not tools and (rules.body is None or (rules.thoughts == "none" and not format.content_opening)):
        return rules.body
    if tools and not rules.must_call and rules.body is None and not _can_be_told(format):
        return None
    grammar = _Grammar(spelling)
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
    # With an opening of its own, content may begin as calls do.
    return bool(calls.begin or calls.opening) and not format.content_opening


@dataclass(slots=True)
class _Grammar:
    spelling: Spelling
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
        return self.spelling.literal(marker) if marker else ""

    def until(self, marker: str) -> str:
        """Any text up to and with the marker."""
        if self._is_token(marker):
            return f"{self.rule('ANY', '/(?s:.+)/')}? {self.written(marker)}"
        return self.rule(f"until{len(self.rules)}[lazy]", f"/(?s:.*){_escaped(marker)}/")

    def without(self, marker: str) -> str:
        """Anything at all without the marker."""
        if self._is_token(marker):
            text = self.rule("ANY", "/(?s:.+)/")
        else:
            text = self.rule(f"FREE{len(self.rules)}", f"/(?s:.+)/ & ~/(?s:.*){_escaped(marker)}(?s:.*)/")
        return f"({' | '.join(filter(None, (text, self.spelling.controls_but(marker))))})*"

    def _is_token(self, marker: str) -> bool:
        return not self.spelling.literal(marker).startswith('"')


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
    return f"{grammar.without(trigger)} ({grammar.until(trigger)} {later})?"


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
    one = calls.single or not rules.parallel_calls or rules.function
    more = "" if one else f"({grammar.written(between)} call)*"
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
        case BracedCalls():
            return _braced(grammar, calls, tool, param)
        case _:
            raise AssertionError("there are no other kinds of calls")
    arguments = grammar.part(_arguments(tool.parameters, param))
    return f"{grammar.written(before)} {arguments} {grammar.written(after + calls.closing)}"


def _named(grammar: _Grammar, calls: NamedCalls, tool: Tool, param: str) -> str:
    before, number, after = calls.header.replace("{name}", tool.name).partition("{number}")
    header = [grammar.written(before), "/[0-9]{1,9}/" if number else "", grammar.written(after)]
    arguments = grammar.part(_arguments(tool.parameters, param))
    return " ".join(filter(None, (*header, arguments, grammar.written(calls.closing))))


def _tagged(grammar: _Grammar, calls: TaggedCalls, tool: Tool, param: str) -> str:
    text = [grammar.written(tool.name + calls.name_end)]
    for name, schema, is_required in _properties(tool, param):
        argument = _tagged_argument(grammar, calls, name, schema, f"{param}.properties.{name}")
        text.append(argument if is_required else f"({argument})?")
    return " ".join([*text, grammar.written(calls.closing)])


def _properties(tool: Tool, param: str) -> list[tuple[str, Any, bool]]:
    """The arguments one by one: name, schema, and whether it must be there."""
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or set(required) - properties.keys():
        raise InvalidRequest("this model needs every argument named among the properties", param=param)
    if odd := [name for name in properties if not _PLAIN_NAME.fullmatch(name)]:
        raise InvalidRequest(f"this model cannot write an argument named {odd[0]!r}", param=param)
    if more := tool.parameters.keys() & _NOT_BY_ONE:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes arguments", param=param)
    shared = {name: tool.parameters[name] for name in tool.parameters.keys() & {"$defs", "definitions"}}
    return [
        (name, {**shared, **schema} if isinstance(schema, dict) and not _is_text(schema) else schema, name in required)
        for name, schema in properties.items()
    ]


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _tagged_argument(grammar: _Grammar, calls: TaggedCalls, name: str, schema: Any, param: str) -> str:
    is_text = _is_text(schema)
    opening = calls.key_opening + name + calls.key_closing
    opening += calls.value_opening.replace("{text}", "true" if is_text else "false")
    if not is_text:
        value = grammar.part(Constraint("json_schema", json.dumps(schema), param))
        return f"{grammar.written(opening)} {value} {grammar.written(calls.value_closing)}"
    # Up to where the parser sees the end, which needs no line of its own.
    end = calls.value_closing.strip()
    after = grammar.written(calls.value_closing.partition(end)[2])
    return f"{grammar.written(opening)} {_text(grammar, schema, end, param)} {after}"


def _text(grammar: _Grammar, schema: Mapping[str, Any], end: str, param: str) -> str:
    """A text as it is, and what ends it."""
    if more := schema.keys() - _NOTES - {"enum"}:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes texts", param=param)
    if "enum" not in schema:
        return grammar.until(end)
    words = [grammar.written(word + end) for word in schema["enum"] if isinstance(word, str) and end not in word]
    if not words:
        raise InvalidRequest("no text satisfies this", param=param)
    return f"({' | '.join(words)})"


def _braced(grammar: _Grammar, calls: BracedCalls, tool: Tool, param: str) -> str:
    needed: list[str] = []
    others: list[str] = []
    for name, schema, is_required in _properties(tool, param):
        argument = _braced_argument(grammar, calls, name, schema, f"{param}.properties.{name}")
        (needed if is_required else others).append(argument)
    comma = grammar.written(",")
    if needed:
        inside = f" {comma} ".join(needed) + "".join(f" ({comma} {other})?" for other in others)
    else:
        # Whichever comes first has no comma before it.
        firsts = [
            " ".join([other, *(f"({comma} {later})?" for later in others[at + 1 :])]) for at, other in enumerate(others)
        ]
        inside = f"({' | '.join(firsts)})?" if firsts else ""
    return f"{grammar.written(tool.name + '{')} {inside} {grammar.written('}' + calls.closing)}"


def _braced_argument(grammar: _Grammar, calls: BracedCalls, name: str, schema: Any, param: str) -> str:
    if _is_text(schema):
        return f"{grammar.written(f'{name}:{calls.quote}')} {_text(grammar, schema, calls.quote, param)}"
    if not isinstance(schema, Mapping) or schema.get("type") not in ("integer", "number", "boolean", "null"):
        raise InvalidRequest(
            "only texts, numbers and booleans can be enforced in the way this model writes", param=param
        )
    return f"{grammar.written(f'{name}:')} {grammar.part(Constraint('json_schema', json.dumps(schema), param))}"


def _arguments(schema: dict[str, Any], param: str) -> Constraint:
    """The schema of a function's arguments: an object whether it says so or not, with no more than what it names."""
    closed = {} if schema.keys() & _OPEN or "properties" not in schema else {"additionalProperties": False}
    return Constraint("json_schema", json.dumps({"type": "object", **closed, **schema}), param)


def _escaped(text: str) -> str:
    """A text as a regular expression between slashes."""
    return "".join("\\" + letter if letter in _SPECIAL else letter.replace("\n", r"\n") for letter in text)

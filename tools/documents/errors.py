"""docs/reference/errors.md: every error class, and every message that the code raises it with."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from documents.markdown import ROOT
from paddock import errors
from paddock.errors import PaddockError, StartupError

_HEADER = """\
# Errors

Every error that a server or the command line reports, with the messages that the code raises it with. A name in braces
is replaced by a value. (This page is generated from the code: `make docs`.)

Over HTTP an error is `{"error": {"message", "type", "param", "code"}, "request_id"}`. In a stream it is an `error`
event, which ends the stream without `[DONE]`. Under `/v1/messages` the `type` is Anthropic's, and the body has
`"type": "error"`. The `request_id` is that of the header `x-request-id`.

Not listed: messages about a single field of a body, which name the field and its value (`temperature: …`, 400
`invalid_request`), and the texts of a chat template or of llama.cpp that an error passes on.
"""


def page() -> str:
    messages = raised()
    over_http = [cls for cls in classes() if not issubclass(cls, StartupError)]
    parts = [_HEADER, "\n## Overview\n\n| status | code | type | when |\n|---|---|---|---|\n"]
    for cls in sorted(over_http, key=lambda each: (each.status, each.code)):
        parts.append(f"| {cls.status} | [`{cls.code}`](#{cls.code}) | `{cls.type}` | {_when(cls)} |\n")
    for cls in sorted(over_http, key=lambda each: each.code):
        parts.append(f"\n## `{cls.code}`\n\nHTTP {cls.status}. {_when(cls)}\n{_list(messages[cls.__name__])}")
    parts.append("\n## Errors of the command line\n\nThe command prints one line and exits with status 1.\n")
    for cls in sorted((each for each in classes() if issubclass(each, StartupError)), key=lambda each: each.code):
        parts.append(f"\n### `{cls.code}`\n\n{_when(cls)}\n{_list(messages[cls.__name__])}")
    return "".join(parts)


def classes() -> list[type[PaddockError]]:
    found = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, PaddockError)]
    return sorted(found, key=lambda cls: cls.__name__)


def raised() -> dict[str, list[str]]:
    """The messages of each class, by its name."""
    names = {cls.__name__ for cls in classes()}
    found: dict[str, set[str]] = {name: set() for name in names}
    for folder in ("src/paddock", "lab/src"):
        for path in (ROOT / folder).rglob("*.py"):
            for name, message in _calls(ast.parse(path.read_text("utf-8")), names):
                found[name].add(message)
    return {name: sorted(messages, key=str.lower) for name, messages in found.items()}


def _calls(tree: ast.Module, names: set[str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in names and _has_words(node.args[0]):
            yield name, _text(node.args[0])


def _has_words(node: ast.expr) -> bool:
    """Whether it is more than a passed-on value."""
    return any(isinstance(part, ast.Constant) and " " in str(part.value).strip() for part in ast.walk(node))


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case _:
            return f"{{{ast.unparse(node)}}}"


def _when(cls: type[PaddockError]) -> str:
    return " ".join(vars(cls)["__doc__"].split())  # every class has one: it says when the error occurs


def _list(messages: list[str]) -> str:
    return "\n" + "".join(f"- {_code(message)}\n" for message in messages) if messages else ""


def _code(text: str) -> str:
    """A code span, also of a text that contains backticks."""
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"

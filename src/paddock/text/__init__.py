"""Words ⇄ tokens at the edges: what a model's text looks like before and after the engine."""

from paddock.text.chat import Chat, Rendered
from paddock.text.chat_template import ChatTemplate
from paddock.text.indent import IndentLimit
from paddock.text.reply import Format, Parsed, ReplyParser, ReplyRules, reply_constraint
from paddock.text.stop_strings import StopStrings
from paddock.text.stream import TextStream

__all__ = [
    "Chat",
    "ChatTemplate",
    "Format",
    "IndentLimit",
    "Parsed",
    "Rendered",
    "ReplyParser",
    "ReplyRules",
    "StopStrings",
    "TextStream",
    "reply_constraint",
]

"""Replies that are more than words: thoughts and tool calls, read out of the text and enforced before it is written."""

from paddock.text.reply.calls import Parsed
from paddock.text.reply.formats import recognise
from paddock.text.reply.grammar import ReplyRules, reply_constraint
from paddock.text.reply.parser import ReplyParser
from paddock.text.reply.shapes import Format

__all__ = ["Format", "Parsed", "ReplyParser", "ReplyRules", "recognise", "reply_constraint"]

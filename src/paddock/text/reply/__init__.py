"""Reasoning and tool calls in a reply: how to parse them, and how to enforce them by a grammar."""

from paddock.text.reply.format import Format
from paddock.text.reply.formats import detect_format
from paddock.text.reply.grammar import reply_constraint
from paddock.text.reply.parser import ReplyParser
from paddock.text.reply.reader import Parsed

__all__ = ["Format", "Parsed", "ReplyParser", "detect_format", "reply_constraint"]

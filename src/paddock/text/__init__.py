"""Conversion between messages and tokens: chat templates, replies, stop strings and UTF-8."""

from paddock.text.chat import Chat
from paddock.text.chat_template import ChatTemplate
from paddock.text.indent import IndentLimit
from paddock.text.reply import Format, Parsed, ReplyParser, reply_constraint
from paddock.text.stop_strings import StopStrings
from paddock.text.stream import TextStream

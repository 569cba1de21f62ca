"""Conversion between messages and tokens: chat templates, replies, stop strings and UTF-8."""

from paddock.text.chat import Chat
from paddock.text.chat_template import ChatTemplate
from paddock.text.differences import Difference, difference, first_word
from paddock.text.indent import IndentLimit
from paddock.text.prompt_places import Place, place_of, system_end
from paddock.text.reply.format import Format
from paddock.text.reply.grammar import reply_constraint
from paddock.text.reply.parser import ReplyParser
from paddock.text.reply.reader import Parsed
from paddock.text.stop_strings import StopStrings
from paddock.text.stream import TextStream

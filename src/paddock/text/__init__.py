"""Words ⇄ tokens at the edges: what a model's text looks like before and after the engine."""

from paddock.text.chat_template import ChatTemplate
from paddock.text.indent import IndentLimit
from paddock.text.stream import TextStream

__all__ = ["ChatTemplate", "IndentLimit", "TextStream"]

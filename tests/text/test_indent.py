from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.text import IndentLimit

_TEXTS = st.text(alphabet=" \t\nab", max_size=40)


def _expected(text: str, least: int) -> tuple[str, bool]:
    """The same for a complete text, line by line."""
    shown = ""
    for number, line in enumerate(text.splitlines(keepends=True)):
        words = line.lstrip(" \t")
        indent = len(line) - len(words)
        if number > 0 and words and indent < least:
            return shown + line[:indent], True
        shown += line
    return shown, False


@given(_TEXTS, st.integers(1, 4), st.data())
def test_a_text_ends_before_a_line_with_too_little_indent(text: str, least: int, data: st.DataObject) -> None:
    limit = IndentLimit(least)
    shown, at = "", 0
    while at < len(text):
        size = data.draw(st.integers(1, 5))
        shown += limit.feed(text[at : at + size])
        at += size
    assert (shown, limit.ended) == _expected(text, least)
    if limit.ended:
        assert limit.feed("    more") == ""

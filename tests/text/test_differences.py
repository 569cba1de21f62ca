from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.text import difference, first_word

Texts = st.text("ab \n;=é", max_size=120)


def test_the_word_is_shown_from_its_start() -> None:
    found = difference("billing: cch=91bc; You are", "billing: cch=3f2a; You are", 13)
    assert (found.shared, first_word(found.text), first_word(found.known or "")) == (13, "cch=91bc;", "cch=3f2a;")
    assert not found.is_same_text


def test_long_texts_are_cut_between_words() -> None:
    found = difference("a " * 60, "b " * 60, 0)
    assert found.text.endswith("a…") and len(found.text) < 60


def test_an_unknown_text_is_not_shown() -> None:
    found = difference("the gate is open", None, 9)
    assert (found.shared, found.text, found.known) == (9, "is open", None)


def test_the_same_text_in_other_tokens() -> None:
    assert difference("the gate is open", "the gate", 4).is_same_text


@given(Texts, Texts, Texts)
def test_the_difference_is_where_the_texts_part(before: str, one: str, other: str) -> None:
    text, known = before + one, before + other
    found = difference(text, known, len(before))
    assert text[: found.shared] == known[: found.shared]
    assert found.is_same_text == (found.shared in (len(text), len(known)))
    if not found.is_same_text:
        assert text[found.shared] != known[found.shared]
    for words, whole in ((found.text, text), (found.known or "", known)):
        assert words.removesuffix("…") in whole
        assert len(words) <= 90

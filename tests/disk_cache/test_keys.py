"""Tokens as bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.disk_cache.keys import TOKEN, decode_tokens, encode_tokens

_tokens = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20)


@given(_tokens, _tokens)
def test_tokens_of_texts_and_images_are_kept(one: list[int], other: list[int]) -> None:
    """Tokens of images are negative."""
    data = encode_tokens(one)
    assert (decode_tokens(data), len(data)) == (one, TOKEN * len(one))
    assert (data == encode_tokens(other)) == (one == other)
    if all(token >= 0 for token in one + other):
        assert (data < encode_tokens(other)) == (one < other), "bytes compare as the tokens do"

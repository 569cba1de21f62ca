"""Chat templates that libllama renders by its own code."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.vocab import render_builtin
from paddock.types import BUILTIN_TEMPLATES
from tests.engine import native as lib

_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def test_the_names_are_those_of_libllama() -> None:
    count = lib.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * count)()
    lib.llama_chat_builtin_templates(names, count)
    assert {name.decode() for name in names if name is not None} == BUILTIN_TEMPLATES


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_every_template_shows_the_text_of_the_user(name: str) -> None:
    for text in ("hello", "wörld " * 5000):
        rendered = render_builtin(name, [("user", text.strip())], starts_reply=True)
        assert rendered is not None and text.strip() in rendered


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), _TEXTS), max_size=5), st.booleans())
def test_chatml_is_rendered_exactly(messages: list[tuple[str, str]], starts_reply: bool) -> None:
    expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    expected += "<|im_start|>assistant\n" if starts_reply else ""
    assert render_builtin("chatml", messages, starts_reply=starts_reply) == expected


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), _TEXTS), max_size=5))
def test_phi3_is_rendered_exactly(messages: list[tuple[str, str]]) -> None:
    expected = "".join(f"<|{role}|>\n{text}<|end|>\n" for role, text in messages) + "<|assistant|>\n"
    assert render_builtin("phi3", messages, starts_reply=True) == expected


def test_an_unknown_template_is_not_rendered() -> None:
    assert render_builtin("{{ messages }}", [("user", "hello")], starts_reply=True) is None

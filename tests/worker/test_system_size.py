"""How many tokens of a prompt are its system text, for models whose cache has checkpoints."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import open_engine
from paddock.types import ChatPrompt, GenerateRequest
from paddock.worker.prompts import PromptReader
from tests.options import engine_options

_ENGINE = open_engine("fake:checkpoint=1", engine_options(), lambda _: None)


def _read(reuse: str, messages: list[dict[str, str]]) -> tuple[list[int], int]:
    info = msgspec.structs.replace(_ENGINE.info, reuse=reuse)
    read = PromptReader(_ENGINE.vocab, info).read(GenerateRequest(ChatPrompt(messages)))
    return read.tokens, read.system_size


@given(st.text("ab c", max_size=60).map(lambda text: f"You are a helpful assistant{text}."))
def test_prompts_with_a_system_text_have_so_many_tokens_in_common(system: str) -> None:
    prompts = [
        _read("checkpoint", [{"role": "system", "content": system}, {"role": "user", "content": question}])
        for question in ("Who?", "Where is it?")
    ]
    (first, size), (second, other) = prompts
    assert size == other > len(system)
    assert first[:size] == second[:size]
    assert bytes(token for token in first[:size] if token < 256).decode().endswith(system)


@pytest.mark.parametrize(
    ("reuse", "role"), [("prefix", "system"), ("snapshot", "system"), ("checkpoint", "user"), ("none", "system")]
)
def test_elsewhere_it_is_not_searched(reuse: str, role: str) -> None:
    messages = [{"role": role, "content": "You are a helpful assistant."}, {"role": "user", "content": "Who?"}]
    assert _read(reuse, messages)[1] == 0

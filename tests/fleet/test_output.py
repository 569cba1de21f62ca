from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet.process.output import parse_line


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ("<3>failed to allocate", "error", "failed to allocate"),
        ("<4>n_ctx is small", "warning", "n_ctx is small"),
        ("<7>llama_model_loader: 30 layers", "debug", "llama_model_loader: 30 layers"),
        ("ggml.c:1: GGML_ASSERT(false) failed", "debug", "ggml.c:1: GGML_ASSERT(false) failed"),
        ("<9>what", "debug", "<9>what"),
        ("", "debug", ""),
    ],
)
def test_levels(line: str, level: str, message: str) -> None:
    assert parse_line(line) == (level, message, {})


@given(st.text(st.characters(exclude_characters="\t")), st.dictionaries(st.text(), st.integers(0, 9) | st.text()))
def test_fields(message: str, fields: dict[str, object]) -> None:
    assert parse_line(f"<3>{message}\t{json.dumps(fields)}") == ("error", message, fields)


@given(st.text())
def test_any_line_is_parsed(line: str) -> None:
    level, message, _ = parse_line(line)
    assert level in ("debug", "info", "warning", "error", "critical")
    assert message in line

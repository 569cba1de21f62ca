"""The XML example of docs/guides/structured-output.md with the real demo model."""

from __future__ import annotations

import re
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server import Server
from tests.tiers import full

_DOCUMENT = (Path(__file__).parents[2] / "docs" / "guides" / "structured-output.md").read_text("utf-8")


def _block(language: str, marker: str) -> str:
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", _DOCUMENT, re.DOTALL) if marker in text]
    return textwrap.dedent(found)


@full
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=full), 1.5])
def test_the_documented_grammar(demo_server: Server, temperature: float) -> None:
    grammar = _block("gbnf", "<horse>")
    for seed in range(3):
        body = {"messages": [{"role": "user", "content": "Describe a horse as XML."}], "grammar": grammar}
        response = demo_server.client.post(
            "/v1/chat/completions", json=body | {"temperature": temperature, "seed": seed}
        )
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        assert choice["finish_reason"] == "stop"
        horse = ElementTree.fromstring(choice["message"]["content"])
        assert [element.tag for element in horse] == ["name", "colour", "age"]
        assert horse.findtext("colour") in ("bay", "black", "chestnut", "grey")
        assert 1 <= int(horse.findtext("age") or 0) <= 29


def test_the_documented_program(demo_server: Server) -> None:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none") as client:
        names: dict[str, Any] = {"client": client, "grammar": _block("gbnf", "<horse>")}
        exec(_block("python", "ElementTree"), names)
    assert names["horse"].tag == "horse"

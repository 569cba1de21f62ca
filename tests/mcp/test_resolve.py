"""Header values of MCP servers, with values of the environment."""

from __future__ import annotations

import re

import pytest

from paddock.config import McpServer
from paddock.errors import StartupError
from paddock.mcp import resolve

ENVIRON = {"TOKEN": "abc", "USER_1": "u", "LINES": "a\nb", "PADDED": " a "}


def _headers(value: str) -> tuple[tuple[str, str], ...]:
    server = McpServer(url="http://a/mcp", headers={"X-A": value})
    return resolve({"notes": server}, ENVIRON)["notes"].headers


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("fixed", "fixed"),
        ("Bearer ${TOKEN}", "Bearer abc"),
        ("${USER_1}:${TOKEN}", "u:abc"),
        ("$TOKEN ${", "$TOKEN ${"),
    ],
)
def test_variables_are_replaced(value: str, sent: str) -> None:
    assert _headers(value) == (("X-A", sent),)


@pytest.mark.parametrize("value", ["${NONE}", "${LINES}", "${PADDED}", "é"])
def test_a_missing_or_unusable_value_names_the_header(value: str) -> None:
    with pytest.raises(StartupError, match=re.escape("server.mcp_servers.notes.headers.X-A: ")):
        _headers(value)

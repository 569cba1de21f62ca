"""The HTTP APIs. A new dialect is a folder here and an entry in this list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from paddock.gateway.auth.permissions import Permissions
from paddock.gateway.dialects.admin import ADMIN
from paddock.gateway.dialects.anthropic import ANTHROPIC
from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.dialects.llama import LLAMA
from paddock.gateway.dialects.mcp import MCP
from paddock.gateway.dialects.ollama import OLLAMA
from paddock.gateway.dialects.openai import OPENAI
from paddock.gateway.dialects.responses import RESPONSES

# Routes are matched in this order: first those that answer fastest.
DIALECTS: Final[Sequence[Dialect]] = (LLAMA, OPENAI, RESPONSES, ANTHROPIC, OLLAMA, MCP, ADMIN)


def declared_permissions(dialects: Sequence[Dialect] = DIALECTS) -> list[Permissions]:
    return [permissions for dialect in dialects for permissions in dialect.all_permissions()]

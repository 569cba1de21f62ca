"""A configuration with API keys for tests, and the requests that they send with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx

from tests.server import Server, chat_body

CHAT = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer boss"}


class KeyConfig:
    """A configuration with three models and some keys."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config.json"
        self.models: dict[str, Any] = {
            "llama-small": {"path": "fake:", "aliases": ["small"]},
            "qwen": {"path": "fake:delay=0.02", "aliases": ["slow"]},
            "vectors": {"path": "fake:", "embedding": True},
        }
        self.keys: dict[str, Any] = {
            "boss": {"key": "boss", "admin": True},
            "anna": {"hash": f"sha256:{hashlib.sha256(b'anna-key').hexdigest()}", "models": ["llama-*", "vectors"]},
            "ben": {"key": "ben-key", "models": ["slow"]},
        }

    def write(self) -> None:
        server = {"keys": self.keys}
        manager = {"models": self.models, "spare_worker": False}
        self.file.write_text(json.dumps({"server": server, "model_manager": manager}))

    def server(self) -> Server:
        self.write()
        return Server("--config", str(self.file))


def headers_of(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key"}


def chat(server: Server, name: str, model: str, text: str = "say: hi", **options: Any) -> httpx.Response:
    return server.client.post(CHAT, json=chat_body(text, model=model, **options), headers=headers_of(name))


def refusal_of(response: httpx.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    message: str = error["message"]
    return message


def usage_of(server: Server, name: str) -> dict[str, Any]:
    accounts = server.client.get("/admin/usage", headers=ADMIN).json()["keys"]
    return next(account for account in accounts if account["key"] == name)

"""A client of `GET /live` for tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.server import Server, events

CHAT = "/v1/chat/completions"


class Viewer:
    """A client of `GET /live`."""

    def __init__(self, server: Server, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._request = server.client.stream("GET", "/live", headers=headers)
        self.trees: dict[str, dict[str, Any]] = {}
        self.reports: dict[str, dict[str, Any]] = {}
        self.placed: dict[str, dict[str, Any]] = {}
        self.events: list[str] = []

    def __enter__(self) -> Viewer:
        self.response = self._request.__enter__()
        assert self.response.status_code == 200
        self._stream = events(self.response)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._request.__exit__(kind, error, at)

    def state(self) -> dict[str, Any]:
        """The next state. Trees, prefixes and reports that come before it are stored."""
        while True:
            name, content = self._next()
            if name == "state":
                return content

    def _next(self) -> tuple[str, dict[str, Any]]:
        for name, data in self._stream:
            self.events.append(name)
            content: dict[str, Any] = json.loads(data)
            if name != "state":
                {"tree": self.trees, "prefixes": self.placed, "reports": self.reports}[name][content["model"]] = content
            return name, content
        raise EOFError

    def until(self, condition: Callable[[dict[str, dict[str, Any]]], object]) -> dict[str, dict[str, Any]]:
        """The models by name, when the condition holds."""
        while True:
            models = {model["id"]: model for model in self.state()["models"]}
            if condition(models):
                return models

    def tree(self, model: str, condition: Callable[[dict[str, Any]], object] = lambda _tree: True) -> dict[str, Any]:
        """The tree of the model, when the condition holds."""
        self.until(lambda _models: model in self.trees and condition(self.trees[model]))
        return self.trees[model]

    def prefixes(self, model: str, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Where the prefixes of the model are, when the condition holds."""
        while model not in self.placed or not condition(self.placed[model]):
            self._next()
        return self.placed[model]

    def read_to_end(self) -> None:
        """Read until the server ends the stream."""
        with pytest.raises(EOFError):
            while True:
                self.state()


def write_config(folder: Path, **content: Any) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(content))
    return str(file)


def busy_slots(model: dict[str, Any]) -> list[dict[str, Any]]:
    return [slot for slot in model["slots"] if slot["state"] != "idle"]


def thread_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))

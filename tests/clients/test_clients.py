"""Clients that people use, unchanged, against the real model: each in a process of its own, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import Server
from tests.tiers import full

pytestmark = full


@pytest.fixture(scope="module")
def embedding_server(tiny_models: dict[str, Path]) -> Iterator[Server]:
    with Server("-m", str(tiny_models["embedding"])) as server:
        yield server


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of the developer's own, no folder but an empty one, and no way out: proxies lead nowhere."""
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "LLM_USER_PATH": str(tmp_path),
        "LLM_LOAD_PLUGINS": "",
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }


def _run(*command: str, environment: dict[str, str], timeout: float = 200) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        cwd=environment["HOME"],
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("client", ["langchain", "litellm"])
def test_a_client(client: str, demo_server: Server, embedding_server: Server, environment: dict[str, str]) -> None:
    script = Path(__file__).with_name(f"with_{client}.py")
    _run(str(script), f"{demo_server.url}/v1", f"{embedding_server.url}/v1", environment=environment)


def test_llm(demo_server: Server, environment: dict[str, str], tmp_path: Path) -> None:
    """Simon Willison's command line, told of the server by the file it has for that."""
    model = {"model_id": "paddock", "model_name": "any", "api_base": f"{demo_server.url}/v1"}
    models = [{**model, "supports_schema": True, "supports_tools": True}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML too

    def llm(*arguments: str) -> str:
        return _run(
            "-m",
            "llm",
            "-m",
            "paddock",
            "-o",
            "max_tokens",
            "64",
            "-o",
            "seed",
            "1",
            *arguments,
            environment=environment,
        )

    assert "hello" in llm("Say hello.", "-o", "temperature", "0", "--no-stream").lower()
    assert "hello" in llm("Say hello.", "-o", "temperature", "0").lower()
    horse = json.loads(llm("Name a horse.", "--schema", json.dumps(HORSE)))
    assert horse["name"] in ("Bella", "Max")
    clock = 'def clock() -> str:\n    "The time."\n    return "noon"'
    assert llm("What time is it?", "--functions", clock, "--chain-limit", "2").strip()


HORSE = {
    "type": "object",
    "properties": {"name": {"enum": ["Bella", "Max"]}, "age": {"type": "integer", "minimum": 0, "maximum": 40}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

"""Ollama's Python package, unchanged, against the real model and a model with random weights; its JavaScript package
against the fake engine, where `NODE_PATH` names a folder that has it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.server import Server
from tests.tiers import full

MODEL = "SmolLM2-135M-Instruct:Q4_1"
OPTIONS = {"num_predict": 6, "temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, demo_model: Path, tiny_models: dict[str, Path]
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").symlink_to(demo_model)
    for name in ("embedding", "caller"):
        (folder / f"{name}.gguf").symlink_to(tiny_models[name])
    with Server("--models-dir", str(folder), "-c", "1024") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as client:
        yield client


def look(at: str) -> str:
    """Look at something.

    Args:
      at: What to look at.
    """
    return at


def test_chat_whole_and_streamed(client: ollama.Client) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    whole = client.chat(MODEL, messages=messages, options=OPTIONS)
    parts = list(client.chat(MODEL, messages=messages, options=OPTIONS, stream=True))
    assert whole.message.content and whole.done_reason == "length" and whole.eval_count == 6
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].total_duration and parts[-1].prompt_eval_count == whole.prompt_eval_count


def test_generate_with_context(client: ollama.Client) -> None:
    first = client.generate(MODEL, "My name is Ada.", options=OPTIONS)
    assert first.response and first.context
    second = client.generate(MODEL, "What is my name?", context=first.context, options=OPTIONS)
    assert second.prompt_eval_count is not None and second.prompt_eval_count > len(first.context)


def test_structured_output(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    answer = client.chat(
        MODEL, messages=[{"role": "user", "content": "n?"}], format=schema, options={"num_predict": 40}
    )
    assert (answer.message.content or "").strip().startswith("{")


def test_tools_that_are_functions(client: ollama.Client) -> None:
    answer = client.chat(
        "caller", messages=[{"role": "user", "content": "x"}], tools=[look], think=False, options={"num_predict": 20}
    )
    for call in answer.message.tool_calls or ():
        assert call.function.name == "look" and isinstance(call.function.arguments, dict)
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "it"}}}]},
        {"role": "tool", "content": "seen", "tool_name": "look"},
    ]
    assert client.chat("caller", messages=history, tools=[look], options={"num_predict": 2}).done


def test_vectors(client: ollama.Client) -> None:
    vectors = client.embed("embedding", input=["a", "b"]).embeddings
    assert len(vectors) == 2 and len(vectors[0]) == len(client.embeddings("embedding", "a").embedding)


def test_models(client: ollama.Client) -> None:
    assert "SmolLM2-135M-Instruct.Q4_1:latest" in [model.model for model in client.list().models]
    shown = client.show(MODEL)
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama" and shown.template
    client.create("terse", from_=MODEL, system="Be terse.", parameters={"num_predict": 2})
    assert client.chat("terse", messages=[{"role": "user", "content": "Hi"}]).eval_count == 2
    client.copy("terse", "terse:copy")
    assert client.delete("terse:copy").status == "success"
    assert client.generate(MODEL, keep_alive="1m").done_reason == "load"
    assert MODEL.replace(":", ".") + ":latest" in [model.model for model in client.ps().models]
    assert client.generate("caller", keep_alive=0).done_reason == "unload"


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.chat("nothing", messages=[{"role": "user", "content": "x"}])
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"hf\.co"):
        list(client.pull("llama3.2", stream=True))


@full
def test_the_asynchronous_client(server: Server) -> None:
    async def ask() -> str:
        async with ollama.AsyncClient(host=server.url) as client:
            stream = await client.generate(MODEL, "Say hello.", stream=True, options=OPTIONS)
            return "".join([part.response or "" async for part in stream])

    assert asyncio.run(ask())


def test_the_javascript_package() -> None:
    folders = [Path(folder) / "ollama" for folder in os.environ.get("NODE_PATH", "").split(os.pathsep) if folder]
    package = next((folder for folder in folders if folder.is_dir()), None)
    node = shutil.which("node")
    if node is None or package is None:
        pytest.skip("no node, or NODE_PATH has no package ollama")
    script = Path(__file__).with_name("with_ollama.mjs")
    with Server("-m", "fake:") as server:
        arguments = [node, str(script), str(package), server.url, "fake"]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout == "done\n", f"{done.stdout}\n{done.stderr}"

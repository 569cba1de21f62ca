"""Real clients against the real model: the code of the README and the guides, and the `openai` package."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import openai
import pydantic
import pytest

from documents import snippets
from documents.markdown import ROOT, Block
from tests.server import Server
from tests.tiers import full

# Snippets that also work with the real model; tests/test_documents.py runs all of them with the fake one.
_GUIDES = ("clients", "completions", "structured-output", "tools")
_FILES = [ROOT / "README.md", *(ROOT / "docs" / "guides" / f"{name}.md" for name in _GUIDES)]


def _blocks(*languages: str) -> list[object]:
    found = [block for block in snippets.runnable() if block.document in _FILES and block.language in languages]
    found = [block for block in found if "make " not in block.code]
    return [pytest.param(block, id=block.place) for block in found]


def _at(code: str, server: Server) -> str:
    """The code with the port of the server: 8080 may be in use on this machine."""
    port = server.url.rpartition(":")[2]
    return re.sub(r"(localhost|127\.0\.0\.1):8080", rf"\1:{port}", code)


@full
@pytest.mark.parametrize("block", _blocks("python", "javascript"))
def test_documented_programs(demo_server: Server, block: Block, tmp_path: Path) -> None:
    interpreter = sys.executable if block.language == "python" else shutil.which("node")
    if interpreter is None:
        pytest.skip("node is not installed")
    file = tmp_path / ("client.py" if block.language == "python" else "client.mjs")
    file.write_text(_at(block.code, demo_server))
    done = subprocess.run([interpreter, file], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 5


@full
@pytest.mark.parametrize("block", _blocks("sh"))
def test_documented_curl_commands(demo_server: Server, block: Block) -> None:
    done = subprocess.run(["sh", "-c", _at(block.code, demo_server)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout


@pytest.fixture(scope="module")
def client(demo_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Say hello."}], temperature=0, max_tokens=16
    )
    assert "hello" in (answer.choices[0].message.content or "").lower()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10


def test_openai_parses_structured_output(client: openai.OpenAI) -> None:
    class Horse(pydantic.BaseModel):
        name: Literal["Bella", "Max"]
        age: int = pydantic.Field(ge=0, le=40)

    answer = client.chat.completions.parse(
        model="any", messages=[{"role": "user", "content": "Name a horse."}], response_format=Horse, max_tokens=64
    )
    horse = answer.choices[0].message.parsed
    assert horse is not None
    assert horse.name in ("Bella", "Max")


def test_openai_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Count to five."}],
        seed=1,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert 0 < chunks[-1].usage.completion_tokens <= 24


def test_openai_stream_events(client: openai.OpenAI) -> None:
    class Horse(pydantic.BaseModel):
        name: Literal["Bella", "Max"]

    with client.chat.completions.stream(
        model="any", messages=[{"role": "user", "content": "Name a horse."}], response_format=Horse, max_tokens=64
    ) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion().choices[0].message
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert answer.parsed is not None
    assert answer.parsed.name in ("Bella", "Max")


def test_openai_concurrent_requests(demo_server: Server) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{demo_server.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "Say hello."}], temperature=0, max_tokens=16
            )
            stream = client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "Count."}], max_tokens=16, stream=True
            )
            answer, chunks = await asyncio.gather(whole, stream)
            return [answer.choices[0].message.content or "", *[c.choices[0].delta.content or "" async for c in chunks]]

    answer, *parts = asyncio.run(ask())
    assert "hello" in answer.lower()
    assert "".join(parts)


def test_openai_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"


def test_openai_models(client: openai.OpenAI) -> None:
    assert [model.owned_by for model in client.models.list()] == ["local"]


def test_the_same_seed_gives_the_same_bytes(client: openai.OpenAI) -> None:
    answers = {_haiku(client) for _ in range(3)}
    assert len(answers) == 1


def _haiku(client: openai.OpenAI) -> str | None:
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Write a haiku."}],
        seed=7,
        max_tokens=32,
        temperature=1.2,
        extra_body={"deterministic": True},
    )
    return answer.choices[0].message.content

"""`--normalize` and `normalize`: where normalizers act, and the header that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.key_config import CHAT
from tests.server import Server

HEADER = "x-paddock-normalized"
_RULES = "You are Claude Code, Anthropic's official CLI for Claude. " * 3


def _system(cch: str) -> list[dict[str, str]]:
    header = f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={cch};"
    return [{"type": "text", "text": text} for text in (header, _RULES)]


def _body(path: str, cch: str) -> dict[str, Any]:
    user = {"role": "user", "content": "say: hi"}
    text = "\n".join(part["text"] for part in _system(cch))
    match path:
        case "/v1/messages":
            return {"system": _system(cch), "messages": [user], "max_tokens": 9}
        case "/v1/responses":
            return {"instructions": text, "input": "say: hi"}
        case _:
            return {"messages": [{"role": "system", "content": _system(cch)}, user]}


def _post(server: Server, path: str, cch: str, **fields: Any) -> httpx.Response:
    response = server.client.post(path, json={**_body(path, cch), "cache_report": True, **fields})
    assert response.status_code == 200, response.text
    return response


def _computed(response: httpx.Response) -> int:
    computed: int = response.json()["cache_report"]["computed"]
    return computed


@pytest.fixture(scope="module")
def normalizing() -> Iterator[Server]:
    with Server("-m", "fake:", "--normalize", "claude-code") as server:
        yield server


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
def test_a_session_of_claude_code_is_cached(normalizing: Server, path: str) -> None:
    first = _post(normalizing, path, f"{path}3f2a")
    second = _post(normalizing, path, f"{path}91bc")
    assert (first.headers[HEADER], second.headers[HEADER]) == ("claude-code", "claude-code")
    assert _computed(second) == 1
    with normalizing.client.stream("POST", path, json={**_body(path, "77aa"), "stream": True}) as response:
        assert response.headers[HEADER] == "claude-code"


def test_the_prompt_has_no_billing_header(normalizing: Server) -> None:
    verbose = _post(normalizing, CHAT, "3f2a", verbose=True).json()["__verbose"]
    assert "billing" not in verbose["prompt"] and "Claude Code" in verbose["prompt"]


def test_tokens_are_counted_of_the_normalized_prompt(normalizing: Server) -> None:
    body = _body("/v1/messages", "3f2a")
    counted = normalizing.client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    assert counted == _post(normalizing, "/v1/messages", "3f2a").json()["cache_report"]["prompt_tokens"]


def test_other_prompts_have_no_header(normalizing: Server) -> None:
    response = normalizing.client.post(CHAT, json={"messages": [{"role": "user", "content": "say: hi"}]})
    assert HEADER not in response.headers
    assert HEADER not in normalizing.client.post("/completion", json={"prompt": "x-anthropic", "n_predict": 1}).headers


def test_a_request_can_choose(normalizing: Server, fake_server: Server) -> None:
    assert HEADER not in _post(normalizing, CHAT, "3f2a", normalize=[]).headers
    assert HEADER not in _post(fake_server, CHAT, "3f2a").headers
    for asked in ("claude-code", ["claude-code"]):
        assert _post(fake_server, CHAT, "3f2a", normalize=asked).headers[HEADER] == "claude-code"


def test_a_deterministic_request_is_normalized_only_if_it_asks(normalizing: Server) -> None:
    assert HEADER not in _post(normalizing, CHAT, "3f2a", deterministic=True).headers
    asked = _post(normalizing, CHAT, "3f2a", deterministic=True, normalize="claude-code")
    assert asked.headers[HEADER] == "claude-code"
    with Server("-m", "fake:", "--normalize", "claude-code", "--deterministic") as server:
        assert HEADER not in _post(server, CHAT, "3f2a").headers


def test_an_unknown_name_is_refused_with_the_known_ones(fake_server: Server) -> None:
    response = fake_server.client.post(CHAT, json={**_body(CHAT, "x"), "normalize": ["claude"]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].startswith("normalize") and "there are: claude-code" in error["message"]


def test_models_have_their_own(tmp_path: Path) -> None:
    models = {"plain": {"path": "fake:", "normalize": []}, "agents": {"path": "fake:"}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_manager": {"models": models, "normalize": ["claude-code"]}}))
    with Server("--config", str(config)) as server:
        assert HEADER not in _post(server, CHAT, "3f2a", model="plain").headers
        assert _post(server, CHAT, "3f2a", model="agents").headers[HEADER] == "claude-code"

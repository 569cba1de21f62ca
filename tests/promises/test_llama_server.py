"""A llama-server and Paddock with the same flags give the same answers to requests without parameters.

Flags that make answers random are left out: the two draw different random numbers.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server

_SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},'
    ' "required": ["name", "age"], "additionalProperties": false}'
)
_PENALTIES = "--repeat-penalty 1.3 --repeat-last-n 32 --presence-penalty 0.5 --frequency-penalty 0.2"
_FLAGS = (
    "",
    f"--top-k 1 --min-p 0.2 --top-p 0.5 --typical 0.9 {_PENALTIES}",
    "--ignore-eos --dry-multiplier 0.8 --dry-allowed-length 1 --top-nsigma 2 --dynatemp-exp 1.5",
    "--grammar 'root ::= [a-z ]+'",
    f"--json-schema '{_SCHEMA}'",
    "-r the -l 7042-inf -l 260-5 --samplers 'penalties;temperature' --mirostat-ent 4",
)
_MESSAGES = [{"role": "user", "content": "Say only the word yes."}]
_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/completion", {"prompt": "The capital of France is", "return_tokens": True}),
    ("/v1/completions", {"prompt": "Once upon a time"}),
    ("/v1/chat/completions", {"messages": _MESSAGES}),
)
_INTERNAL = {
    *("backend_sampling", "chat_format", "generation_prompt", "grammar_lazy", "grammar_triggers", "preserved_tokens"),
    *("reasoning_format", "reasoning_in_content", "speculative.types"),
    *("stream", "timings_per_token"),  # a slot does not know how its answer is sent
    *("grammar", "logit_bias"),  # llama-server shows the grammar of a schema, and the tokens of ignore_eos
}
"""Names of generation settings that no flag of the test sets."""


@pytest.fixture(scope="module", params=_FLAGS, ids=lambda flags: flags[:24] or "no further flags")
def servers(request: pytest.FixtureRequest, demo_model: Path) -> Iterator[tuple[str, str]]:
    flags = ("-c", "1024", "--temp", "0", "--seed", "42", "-n", "16", *shlex.split(request.param))
    with (
        LlamaServer(llama_server_binary(), demo_model, *flags) as theirs,
        Server("-m", str(demo_model), "-t", "1", *flags) as ours,
    ):
        yield theirs.url, ours.url


@pytest.mark.parametrize(("route", "body"), _REQUESTS, ids=[route for route, _ in _REQUESTS])
def test_a_request_without_parameters_has_the_same_answer(
    servers: tuple[str, str], route: str, body: dict[str, Any]
) -> None:
    theirs, ours = (httpx.post(f"{url}{route}", json=body, timeout=200) for url in servers)
    if theirs.status_code == 400 and "Failed to initialize samplers" in theirs.text:
        pytest.skip("this llama-server refuses chats with the flag --json-schema")
    assert (theirs.status_code, ours.status_code) == (200, 200), ours.text
    assert _answer(ours.json()) == _answer(theirs.json())


def test_the_generation_settings_are_the_same(servers: tuple[str, str]) -> None:
    shown = []
    for url in servers:
        answer = httpx.post(f"{url}/completion", json={"prompt": "x", "n_predict": 1}, timeout=200).json()
        slots = httpx.get(f"{url}/slots", timeout=200).json()
        shown.append((answer["generation_settings"], next(slot["params"] for slot in slots if "params" in slot)))
    theirs, ours = shown
    for one, other in zip(theirs, ours, strict=True):
        names = one.keys() - _INTERNAL
        assert {name: _rounded(other.get(name)) for name in names} == {name: _rounded(one[name]) for name in names}


def _rounded(value: object) -> object:
    return round(value, 5) if isinstance(value, float) else value


def _answer(body: dict[str, Any]) -> object:
    if "choices" not in body:
        return body["tokens"], body["content"], body["stop_type"], body["stopping_word"]
    (choice,) = body["choices"]
    return choice.get("text"), choice.get("message", {}).get("content"), choice["finish_reason"], _counts(body)


def _counts(body: dict[str, Any]) -> tuple[int, int]:
    return body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]


_SYSTEM = [{"role": "system", "content": "Be brief."}, *_MESSAGES]
_TEXT_FLAGS = (
    "--no-jinja --chat-template llama3 --no-prefill-assistant",
    "--no-jinja --chat-template mistral-v7",
    "--no-jinja --special",
    "--skip-chat-parsing --no-prefill-assistant --special",
)


@pytest.mark.parametrize("flags", _TEXT_FLAGS)
def test_prompts_and_biases_by_text_are_the_same(demo_model: Path, flags: str) -> None:
    shared = ("-c", "1024", "--temp", "0", "-n", "12", *shlex.split(flags))
    messages = [*_SYSTEM, *([{"role": "assistant", "content": "Oh"}] if "prefill" in flags else [])]
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/apply-template", {"messages": messages}),
        ("/v1/chat/completions", {"messages": messages}),
        ("/completion", {"prompt": "Once", "logit_bias": [[" princess and a dragon", 4], [11, False]]}),
        ("/completion", {"prompt": "Once", "logit_bias": {" upon": False, "15": 3.5, "12": -2}}),
        ("/completion", {"prompt": "Once", "logit_bias": {"<|im_end|>": 9}, "samplers": "kpt"}),
    ]
    with (
        LlamaServer(llama_server_binary(), demo_model, *shared) as theirs,
        Server("-m", str(demo_model), "-t", "1", *shared) as ours,
    ):
        for route, body in bodies:
            one, other = (httpx.post(f"{url}{route}", json=body, timeout=200).json() for url in (theirs.url, ours.url))
            if "choices" in one:
                one, other = (answer["choices"][0]["message"] for answer in (one, other))
            name = "prompt" if route == "/apply-template" else "content"
            assert other[name] == one[name], (route, body)

"""A receipt lets anyone with the model's file compute the answer again, and shows any change."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paddock.receipts import Receipt, SigningKey, chain_line, compare
from tests.forking import run_command
from tests.server import Server
from tests.tiers import full

_LONG = " ".join(f"Stable {n} holds {n + 3} horses and {n * 2} bales of hay." for n in range(12))
_ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": f"{_LONG} Which is the largest?"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me about horses."}], "job_id": "job-1"}),
    ("/v1/completions", {"prompt": ["A bridge", "Tea is"], "n": 2, "seed": 3, "logprobs": 1}),
    ("/completion", {"prompt": f"{_LONG} And", "n_predict": 12, "seed": 2**63}),
    ("/v1/responses", {"input": "Hello?", "max_output_tokens": 12, "temperature": 0}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hello?"}], "logit_bias": {"5": False}}),
]


@pytest.fixture(scope="module", params=["tiny", pytest.param("demo", marks=full)])
def model(request: pytest.FixtureRequest, demo_model: Path, tiny_models: dict[str, Path]) -> Path:
    return demo_model if request.param == "demo" else tiny_models["llama"]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    key, folder = SigningKey.new(), tmp_path_factory.mktemp("keys")
    key.save(folder / "key.pem")
    (folder / "public.pem").write_bytes(key.public_pem())
    key.folder = folder  # type: ignore[attr-defined]
    return key


@pytest.fixture(scope="module")
def server(model: Path, key: SigningKey) -> Iterator[Server]:
    file = key.folder / "key.pem"  # type: ignore[attr-defined]
    with Server("-m", str(model), "--deterministic", "-np", "2", "-c", "4096", "--receipt-key", str(file)) as server:
        yield server


@pytest.fixture(scope="module")
def replies(server: Server) -> list[dict[str, Any]]:
    return [_reply(server, path, body) for path, body in _ASKED]


@pytest.fixture(scope="module")
def output(replies: list[dict[str, Any]], key: SigningKey) -> list[dict[str, Any]]:
    """The output of a batch."""
    lines: list[dict[str, Any]] = []
    previous: str | None = None
    for number, body in enumerate(replies):
        response = {"status_code": 200, "request_id": f"req_{number}", "body": body}
        line = {"id": f"b{number}", "custom_id": f"c{number}", "response": response, "error": None}
        line, previous = chain_line(line, previous, key)
        lines.append(line)
    return lines


def _reply(server: Server, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    limit = {} if path in ("/completion", "/v1/responses") else {"max_tokens": 12}
    response = server.client.post(path, json=limit | body | {"receipt": True} | more)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def _verify(folder: Path, lines: list[dict[str, Any]] | bytes, *args: str) -> subprocess.CompletedProcess[str]:
    data = lines if isinstance(lines, bytes) else _written(lines)
    (folder / "output.jsonl").write_bytes(data)
    return run_command("verify", str(folder / "output.jsonl"), *args)


def _written(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def test_a_batch_is_computed_again(
    server: Server, output: list[dict[str, Any]], key: SigningKey, tmp_path: Path
) -> None:
    public = key.folder / "public.pem"  # type: ignore[attr-defined]
    done = _verify(tmp_path, output, "--server", server.url, "--public-key", str(public))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(output)} computed again: {len(output)} identical, 0 different" in done.stdout
    assert f"{len(output)} as written, 0 altered; {len(output)} signed" in done.stdout
    assert "differs between" not in done.stdout
    last = done.stdout.split("last receipt: ")[1].strip()
    assert _verify(tmp_path, output, "--sample", "0", "--last", last).returncode == 0
    missing = _verify(tmp_path, output[:-1], "--sample", "0", "--last", last)
    assert missing.returncode == 1
    assert "lines are missing at the end" in missing.stdout
    sampled = _verify(tmp_path, output, "--server", server.url, "--sample", "20%", "--json")
    assert json.loads(sampled.stdout)["computed"] == 2


def test_one_byte(server: Server, output: list[dict[str, Any]], tmp_path: Path) -> None:
    """In the text, in the request, in another field, and in the order of the lines."""
    whole = _written(output)
    content = output[0]["response"]["body"]["choices"][0]["message"]["content"]
    spelled = json.dumps(content, ensure_ascii=False).encode()[1:-1]
    at = whole.index(spelled) + len(spelled) - 1
    changes = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]] if spelled[-1:].isalpha() else []
    changes += [
        whole.replace(b"Which is the largest?", b"Which is the fargest?", 1),
        whole.replace(b'"custom_id": "c2"', b'"custom_id": "c7"', 1),
        whole.replace(b'"status_code": 200', b'"status_code": 201', 1),
        _written([output[1], output[0], *output[2:]]),
        _written(output[1:]),
        _written([*output[:2], *output[3:]]),
    ]
    for changed in changes:
        assert changed != whole
        done = _verify(tmp_path, changed, "--sample", "0")
        assert done.returncode == 1, done.stdout
        assert done.stdout.startswith("line ")


def test_an_answer_that_the_model_did_not_give(
    server: Server, output: list[dict[str, Any]], key: SigningKey, tmp_path: Path
) -> None:
    """All hashes are right, since who wrote the file has the key. Only computing it again shows the lie."""
    receipt = json.loads(json.dumps(output[3]["response"]["body"]["receipt"]))
    answer = receipt["answers"][0]
    answer["tokens"][4] += 1
    answer["tokens_sha256"] = _token_digest(answer["tokens"])
    body = output[3]["response"]["body"] | {"receipt": receipt}
    lie, _ = chain_line(output[3] | {"response": output[3]["response"] | {"body": body}}, None, key)
    done = _verify(tmp_path, [lie], "--server", server.url)
    assert done.returncode == 1
    assert "line 1 (c3): answer 0 differs at token 4: " in done.stdout
    assert "1 as written, 0 altered" in done.stdout


def test_another_model_is_named(model: Path, output: list[dict[str, Any]], key: SigningKey, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    data = bytearray(model.read_bytes())
    data[-4] ^= 1  # a weight, in its last bits
    other.write_bytes(data)
    with Server("-m", str(other), "--deterministic", "-np", "2", "-c", "4096") as server:
        done = _verify(tmp_path, output, "--server", server.url)
    there, here = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (model, other))
    assert f"model[0].sha256: {there} there, {here} here" in done.stdout
    assert f"model[0].name: {model.name} there, other.gguf here" in done.stdout


def test_a_template_that_prints_the_date(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """An answer of another day is computed again with the date of that day."""
    template = "{{ strftime_now('%d %B %Y') }}. {{ date_string }}. {{ messages[0].content }}"
    body = {"messages": [{"role": "user", "content": "Which day is it?"}], "seed": 1}
    path = "/v1/chat/completions"
    begun = datetime.date.today()
    with Server("-m", str(tiny_models["llama"]), "--deterministic", "--chat-template", template) as server:
        old, today = (_reply(server, path, body | date) for date in ({"template_date": "2020-02-29"}, {}))
        lines = [{"custom_id": f"c{number}", "response": {"body": reply}} for number, reply in enumerate((old, today))]
        done = _verify(tmp_path, lines, "--server", server.url)
        assert "2 computed again: 2 identical, 0 different" in done.stdout, done.stdout + done.stderr
    dates = [reply["receipt"]["request"]["body"]["template_date"] for reply in (old, today)]
    assert dates[0] == "2020-02-29"
    assert begun <= datetime.date.fromisoformat(dates[1]) <= datetime.date.today()
    prompts = [reply["receipt"]["answers"][0]["prompt_sha256"] for reply in (old, today)]
    assert prompts[0] != prompts[1]


@full
def test_a_server_of_its_own(model: Path, output: list[dict[str, Any]], tmp_path: Path) -> None:
    """Started with the options of the receipts."""
    done = _verify(tmp_path, output, "--model", str(model))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "differs between" not in done.stdout


def test_what_cannot_be_computed(output: list[dict[str, Any]], tmp_path: Path) -> None:
    with Server("-m", "fake:", "-c", "32") as server:
        done = _verify(tmp_path, output[:1], "--server", server.url)
        assert done.returncode == 3
        assert "line 1 (c0): not computed: " in done.stdout
    done = _verify(tmp_path, output[:1], "--server", server.url)
    assert done.returncode == 3
    assert "line 1 (c0): not computed: no server answers" in done.stdout
    for malformed, problem in (
        (b"{}\n{\n", "line 2: it is not valid JSON"),
        (b"", "has no lines"),
        (b"\n{}", "line 1"),
    ):
        done = _verify(tmp_path, malformed, "--sample", "0")
        assert done.returncode == 2
        assert problem in done.stderr


def test_a_file_that_was_replaced_after_the_load(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    shutil.copy(tiny_models["llama"], file)
    with Server("-m", str(file)) as server:
        path, body = _ASKED[1]
        assert server.chat("Hello?", max_tokens=1), "it is loaded"
        copy = tmp_path / "copy"
        shutil.copy(file, copy)
        copy.replace(file)
        response = server.client.post(path, json=body | {"receipt": True, "deterministic": True, "max_tokens": 2})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "receipt_unavailable")
        assert "load it again" in response.json()["error"]["message"]


def test_adapters(tiny_models: dict[str, Path], tiny_adapters: list[Path], tmp_path: Path) -> None:
    """The scales of the server at that time are in the request, also if the client did not send them."""
    first, second = tiny_adapters
    options = ("-m", str(tiny_models["llama"]), "--lora", f'"{first}","{second}"', "--deterministic")
    with Server(*options) as server:
        server.client.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}]).raise_for_status()
        reply = _reply(server, *_ASKED[3])
        (adapter,) = reply["receipt"]["identity"]["adapters"]
        assert (adapter["name"], adapter["scale"]) == (second.name, 0.5)
        assert adapter["sha256"] == hashlib.sha256(second.read_bytes()).hexdigest()
        assert reply["receipt"]["request"]["body"]["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.5}]
        server.client.post("/lora-adapters", json=[{"id": 0, "scale": 1}]).raise_for_status()
        done = _verify(tmp_path, [reply], "--server", server.url)
    assert done.returncode == 0, done.stdout
    assert "differs between" not in done.stdout


def test_replicas_on_other_servers(
    server: Server, model: Path, replies: list[dict[str, Any]], key: SigningKey, tmp_path: Path
) -> None:
    """The gateway's receipts are those of the server that answers, but for the request, which is the client's."""
    config = {"model_manager": {"models": {"pooled": {"replicas": {"a": {"url": server.url}}}}}}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    file = key.folder / "key.pem"  # type: ignore[attr-defined]
    with Server("--config", str(tmp_path / "config.json"), "--receipt-key", str(file)) as gateway:
        named = {"model": "pooled", "deterministic": True}
        remote = [_reply(gateway, path, body | named) for path, body in _ASKED if body.get("n", 1) == 1]
        local = [reply for reply, (_, body) in zip(replies, _ASKED, strict=True) if body.get("n", 1) == 1]
        for there, here in zip(local, remote, strict=True):
            known, made = (msgspec.convert(reply["receipt"], Receipt) for reply in (there, here))
            if known.seed.rule != "random":
                assert compare(known, made).answers == []
            assert compare(known, made).identity == []
            assert made.request.body["model"] == "pooled"
            assert made.identity.model[0].sha256 == hashlib.sha256(model.read_bytes()).hexdigest()
        streamed = gateway.client.post(
            _ASKED[0][0], json=_ASKED[0][1] | named | {"receipt": True, "stream": True, "seed": 1, "max_tokens": 4}
        )
        assert '"paddock-receipt/1"' in streamed.text
        refused = gateway.client.post(
            "/v1/completions", json=named | {"prompt": "A bridge", "n": 2, "receipt": True, "max_tokens": 2}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "receipt")
        public = key.folder / "public.pem"  # type: ignore[attr-defined]
        done = _verify(tmp_path, remote, "--server", gateway.url, "--public-key", str(public))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(remote)} computed again: {len(remote)} identical, 0 different" in done.stdout
    assert "differs between" not in done.stdout


def test_one_slot_without_batching_is_exact_cold_and_warm(model: Path) -> None:
    """With these flags alone: a receipt needs no `deterministic`, and a warm cache gives the same tokens."""
    flags = ("-m", str(model), "--parallel", "1", "--no-cont-batching", "-c", "2048")
    seeded = [(path, {"seed": 5} | body) for path, body in _ASKED]
    cold = []
    for path, body in seeded[:2] if model.stat().st_size > 10**7 else seeded:
        with Server(*flags) as server:
            cold.append(msgspec.convert(_reply(server, path, body)["receipt"], Receipt))
    with Server(*flags) as server:
        for _ in range(3):
            for (path, body), receipt in zip(seeded, cold, strict=False):
                warm = msgspec.convert(_reply(server, path, body)["receipt"], Receipt)
                assert compare(receipt, warm).answers == []
                assert compare(receipt, warm).identity == []


def _token_digest(tokens: list[int]) -> str:
    return hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in tokens)).hexdigest()

"""Prefixes on disk: they survive restarts and crashes, never change an answer, and never fail a request."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paddock.disk_cache import account
from tests import tiny_models, tiny_projectors
from tests.server import Server, wait_for
from tests.tiers import full

_PROMPT = "Once upon a time there was a small model. " * 12
_LEAST_CACHED = 128


def _server(model: Path, folder: Path | None, *args: str, **more: Any) -> Server:
    disk = () if folder is None else ("--cache-disk", f"{folder}:1G")
    return Server("-m", str(model), "-c", "4096", *disk, *args, **more)


def _ask(server: Server, prompt: Any, key: str | None = None) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached. Deterministic, so that answers can be compared."""
    body = {"prompt": prompt, "n_predict": 12, "temperature": 0, "deterministic": True}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    response = server.client.post("/completion", json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["content"], answer["timings"]["cache_n"]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*/*.kv"))


def _total(server: Server, metric: str, label: str = "") -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(f"{metric}{{") and label in line)


def _wait_for_files(folder: Path) -> None:
    wait_for(lambda: _files(folder), 60, "prefixes on disk")


@pytest.fixture(scope="module")
def expected(tiny_models: dict[str, Path]) -> str:
    with _server(tiny_models["llama"], None) as server:
        return _ask(server, _PROMPT)[0]


@pytest.mark.parametrize("layout", [[], pytest.param(["-np", "2"], marks=full)])
def test_prefixes_survive_a_restart(
    tiny_models: dict[str, Path], tmp_path: Path, expected: str, layout: list[str]
) -> None:
    folder = tmp_path / "cache"
    with _server(tiny_models["llama"], folder, *layout) as server:
        assert _ask(server, _PROMPT) == (expected, 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert _files(folder), "the last prefixes are written when the server stops"
    assert {file.stat().st_mode & 0o777 for file in _files(folder)} == {0o600}
    with _server(tiny_models["llama"], folder, *layout) as server:
        answer, cached = _ask(server, _PROMPT)
        props = server.client.get("/props").json()
        metrics = server.client.get("/metrics").text
    assert answer == expected
    assert cached >= _LEAST_CACHED
    assert props["kv_cache"]["disk_bytes"] == 1 << 30
    assert "paddock_disk_cache_files" in metrics


@full
@pytest.mark.parametrize(
    ("make", "make_projector", "layout"),
    [
        pytest.param(tiny_models.llama, tiny_projectors.llava, [], id="llava", marks=full),
        pytest.param(tiny_models.positions, tiny_projectors.qwen, [], id="qwen"),
        pytest.param(tiny_models.positions, tiny_projectors.qwen, ["-np", "2"], id="qwen-streams", marks=full),
    ],
)
def test_images_survive_a_restart(
    tmp_path: Path, make: Callable[[Path], None], make_projector: Callable[[Path], None], layout: list[str]
) -> None:
    """A picture in a prompt is read from disk with it, and the answer is the same."""
    make(tmp_path / "eye.gguf")
    make_projector(tmp_path / "mmproj.gguf")
    data = base64.b64encode(tiny_projectors.picture(1, 120, 120)).decode()
    prompt = {"prompt_string": f"{_PROMPT}<__media__>{_PROMPT}", "multimodal_data": [data]}
    other = prompt | {"multimodal_data": [base64.b64encode(tiny_projectors.picture(2, 120, 120)).decode()]}
    folder = tmp_path / "cache"
    with _server(tmp_path / "eye.gguf", folder, *layout) as server:
        expected, cached = _ask(server, prompt)
        assert cached == 0
    with _server(tmp_path / "eye.gguf", folder, *layout) as server:
        answer, cached = _ask(server, prompt)
        assert answer == expected
        assert cached >= 2 * _LEAST_CACHED + tiny_projectors.TOKENS
        _, shared = _ask(server, other)
        assert shared < cached - _LEAST_CACHED, "another picture shares the text before it"


@pytest.mark.parametrize("layout", [[], pytest.param(["-np", "2"], marks=full)])
def test_keys_of_latent_attention_survive_a_restart(
    tmp_path: Path, tiny_models: dict[str, Path], layout: list[str]
) -> None:
    with _server(tiny_models["latent"], tmp_path, *layout) as server:
        cold = _ask(server, _PROMPT)
        assert server.client.get("/props").json()["kv_cache"]["state_format"] == "keys"
    with _server(tiny_models["latent"], tmp_path, *layout) as server:
        answer, cached = _ask(server, _PROMPT)
    assert (answer, 0) == cold
    assert cached >= _LEAST_CACHED


def test_prefixes_survive_an_unload(tiny_models: dict[str, Path], tmp_path: Path, expected: str) -> None:
    with _server(tiny_models["llama"], tmp_path) as server:
        _ask(server, _PROMPT)
        (pid,) = server.workers()
        assert server.client.post("/admin/unload", json={"model": "llama"}).status_code == 200
        wait_for(lambda: pid not in server.workers(), 60, "the worker to end")
        assert _files(tmp_path), "the last prefixes are written before the worker ends"
        answer, cached = _ask(server, _PROMPT)
    assert answer == expected
    assert cached >= _LEAST_CACHED


def test_prefixes_survive_a_killed_worker(tiny_models: dict[str, Path], tmp_path: Path, expected: str) -> None:
    with _server(tiny_models["llama"], tmp_path) as server:
        _ask(server, _PROMPT)
        _wait_for_files(tmp_path)
        (pid,) = server.workers()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: pid not in server.workers(), 60, "the worker to end")
        answer, cached = _ask(server, _PROMPT)
    assert answer == expected
    assert cached >= _LEAST_CACHED


def test_two_servers_find_what_the_other_wrote(tiny_models: dict[str, Path], tmp_path: Path, expected: str) -> None:
    with _server(tiny_models["llama"], tmp_path) as one, _server(tiny_models["llama"], tmp_path) as other:
        assert _ask(other, "Load it")[1] == 0  # too short for a file
        assert _ask(one, _PROMPT) == (expected, 0)
        _wait_for_files(tmp_path)
        wait_for(lambda: _total(other, "paddock_disk_cache_files") == len(_files(tmp_path)), 60, "files of the other")
        answer, cached = _ask(other, _PROMPT)
    assert answer == expected
    assert cached >= _LEAST_CACHED


def test_tenants_do_not_share(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    keys = {name: {"key": f"key-of-{name}", "tenant": name} for name in ("one", "two")}
    file = tmp_path / "paddock.json"
    file.write_text(json.dumps({"server": {"keys": keys}}))
    folder = tmp_path / "cache"
    with _server(tiny_models["llama"], folder, "--config", str(file)) as server:
        _ask(server, _PROMPT, "key-of-one")
    with _server(tiny_models["llama"], folder, "--config", str(file)) as server:
        assert _ask(server, _PROMPT, "key-of-two")[1] == 0
        assert _ask(server, _PROMPT, "key-of-one")[1] >= _LEAST_CACHED


def test_after_a_clear_memory_index_and_files_agree(
    tiny_models: dict[str, Path], tmp_path: Path, expected: str
) -> None:
    def total(metric: str, label: str = "") -> float:
        return _total(server, metric, label)

    def is_empty() -> bool:
        return total("paddock_disk_cache_files") == total("paddock_disk_cache_bytes") == 0

    with _server(tiny_models["llama"], tmp_path) as server:
        _ask(server, _PROMPT)
        wait_for(lambda: total("paddock_disk_cache_files") > 0, 60, "metrics with files")
        for body in ({"tenant": "nobody"}, {"tenant": ""}):
            left = server.client.post("/admin/cache/clear", json=body)
            assert left.status_code == 200, left.text
            assert bool(_files(tmp_path)) == bool(body["tenant"])
        assert all(one["disk"]["bytes"] == 0 for model in left.json()["models"] for one in model["tenants"])
        with account.locked(str(tmp_path)) as used:
            assert used.total() == 0
        wait_for(is_empty, 60, "metrics without files")
        assert _ask(server, _PROMPT) == (expected, 0)
        _wait_for_files(tmp_path)
        wait_for(lambda: total("paddock_disk_cache_files") > 0, 60, "metrics with files")
        assert total("paddock_disk_cache_failures_total", '"read"') == 0
    with _server(tiny_models["llama"], tmp_path) as server:
        assert _ask(server, _PROMPT)[1] >= _LEAST_CACHED


def test_models_whose_files_have_the_same_name_are_cleared_apart(tmp_path: Path) -> None:
    config = tmp_path / "paddock.json"
    for layers, name in enumerate(("one", "other"), 2):
        (tmp_path / name).mkdir()
        tiny_models.llama(tmp_path / name / "model.gguf", layers=layers)
    models = {name: {"path": str(tmp_path / name / "model.gguf")} for name in ("one", "other")}
    folder = tmp_path / "cache"
    config.write_text(json.dumps({"model_manager": {"models": models, "cache_disk": str(folder)}}))

    def on_disk(server: Server) -> dict[str, int]:
        kept = server.client.get("/admin/cache").json()["models"]
        return {model["model"]: sum(one["disk"]["tokens"] for one in model["tenants"]) for model in kept}

    with Server("--config", str(config), "-c", "4096") as server:
        for name in models:
            body = {"model": name, "prompt": _PROMPT, "n_predict": 1}
            assert server.client.post("/completion", json=body).status_code == 200
        wait_for(lambda: min(on_disk(server).values()) >= _LEAST_CACHED, 60, "prefixes of both")
        cleared = server.client.post("/admin/cache/clear", json={"model": "one"})
        assert cleared.status_code == 200
        left = on_disk(server)
    assert (left["one"], left["other"] >= _LEAST_CACHED) == (0, True)


def test_damaged_files_change_no_answer(tiny_models: dict[str, Path], tmp_path: Path, expected: str) -> None:
    with _server(tiny_models["llama"], tmp_path) as server:
        _ask(server, _PROMPT)
    chance = random.Random(1)
    for file in _files(tmp_path):
        data = bytearray(file.read_bytes())
        for _ in range(20):
            data[chance.randrange(len(data))] ^= 0xFF
        file.write_bytes(data)
    with _server(tiny_models["llama"], tmp_path) as server:
        assert _ask(server, _PROMPT) == (expected, 0)
        wait_for(lambda: any("disk cache" in line for line in server.output), 60, "a log line about the damage")
        assert _ask(server, _PROMPT)[0] == expected


def test_a_disk_that_fails_does_not_fail_requests(tiny_models: dict[str, Path], tmp_path: Path, expected: str) -> None:
    folder = tmp_path / "cache"
    with _server(tiny_models["llama"], folder) as server:
        server.client.post("/completion", json={"prompt": "a", "n_predict": 1})
        shutil.rmtree(folder)
        folder.write_text("a file in the place of the folder")
        assert _ask(server, _PROMPT)[0] == expected
        wait_for(lambda: any("the disk cache is not written" in line for line in server.output), 60, "a log line")
        assert _ask(server, _PROMPT)[0] == expected
    with _server(
        tiny_models["llama"], tmp_path / "other" / "cache", "--cache-disk", f"{tmp_path / 'small'}:1K"
    ) as server:
        assert _ask(server, _PROMPT)[0] == expected


def test_a_folder_that_cannot_be_created_is_named(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = _server(tiny_models["llama"], tmp_path / "file" / "cache")
    with pytest.raises(AssertionError, match="--cache-disk"), server:
        pass


def test_models_whose_states_cannot_be_divided_say_so(tmp_path: Path) -> None:
    with _server(Path("fake:whole=1"), tmp_path) as server:
        _ask(server, _PROMPT)
        assert server.client.get("/props").json()["kv_cache"]["disk_bytes"] == 0
        wait_for(lambda: any("has no effect for this model" in line for line in server.output), 60, "a log line")


# Without rounding to half precision a step of another shape gives the same text.
_PRECISE = ("-fa", "off", "-ctk", "f32", "-ctv", "f32")


def _turn(server: Server, prompt: str) -> tuple[str, int]:
    """Greedy, because deterministic requests do not reuse windows."""
    response = server.client.post("/completion", json={"prompt": prompt, "n_predict": 40, "temperature": 0})
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["content"], answer["timings"]["cache_n"]


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("sliding_window", []),
        pytest.param("sliding_window", ["-np", "2"], marks=full),
        *(pytest.param(kind, layout, marks=full) for kind in ("recurrent", "hybrid") for layout in ([], ["-np", "2"])),
    ],
    ids=str,
)
def test_states_of_windowed_and_recurrent_models_survive_a_restart(
    tiny_models: dict[str, Path], tmp_path: Path, kind: str, layout: list[str]
) -> None:
    with _server(tiny_models[kind], None, *_PRECISE, *layout) as server:
        right, _ = _turn(server, _PROMPT)
        follow_up = _PROMPT + right + " And then?"
        later, _ = _turn(server, follow_up)
    with _server(tiny_models[kind], tmp_path, *_PRECISE, *layout) as server:
        assert _turn(server, _PROMPT) == (right, 0)
        assert server.client.get("/props").json()["kv_cache"]["disk_bytes"] == 1 << 30
    assert _files(tmp_path), "written when the server stops"
    with _server(tiny_models[kind], tmp_path, *_PRECISE, *layout) as server:
        answer, cached = _turn(server, follow_up)
    assert answer == later
    assert cached >= _LEAST_CACHED
    with _server(tiny_models[kind], tmp_path, *_PRECISE, *layout) as server:
        answer, cached = _turn(server, _PROMPT)
    assert answer == right
    assert cached >= _LEAST_CACHED, "the last prompt is kept too"
    for file in _files(tmp_path):
        data = bytearray(file.read_bytes())
        data[-1] ^= 0xFF
        file.write_bytes(data)
    with _server(tiny_models[kind], tmp_path, *_PRECISE, *layout) as server:
        assert _turn(server, _PROMPT) == (right, 0)
        wait_for(lambda: any("disk cache is damaged" in line for line in server.output), 60, "a log line")


@pytest.mark.parametrize("kind", ["sliding_window", pytest.param("hybrid", marks=full)])
def test_a_system_text_is_found_by_another_question_after_a_restart(
    tiny_models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    def ask(server: Server, question: str) -> tuple[str, int]:
        messages = [{"role": "system", "content": _PROMPT}, {"role": "user", "content": question}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 12}
        response = server.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], cached

    with _server(tiny_models[kind], None, *_PRECISE) as server:
        right, _ = ask(server, "How?")
    with _server(tiny_models[kind], tmp_path, *_PRECISE) as server:
        assert ask(server, "Who was there, and what did they say? " * 8)[1] == 0
    with _server(tiny_models[kind], tmp_path, *_PRECISE) as server:
        answer, cached = ask(server, "How?")
    assert answer == right
    assert cached >= _LEAST_CACHED


@full
def test_states_that_leave_host_memory_while_requests_run_are_on_disk(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    """More conversations than host memory has room for, and no idle time to write any."""
    prompts = [f"Conversation {number}: " + f"word{number} " * 120 for number in range(16)]
    args = (*_PRECISE, "-np", "2", "-kvu", "--cache-ram", "8")
    with _server(tiny_models["sliding_window"], tmp_path, *args) as server, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(partial(_turn, server), prompts))
    with _server(tiny_models["sliding_window"], tmp_path, *args) as server:
        again = [_turn(server, prompt) for prompt in prompts[:6]]
    assert [text for text, _ in again] == [text for text, _ in answers[:6]]
    found = sum(cached >= _LEAST_CACHED for _, cached in again)
    assert found >= 3, "the others found no room to wait for the writer"


@full
@pytest.mark.timeout(1800)
def test_a_worker_killed_two_hundred_times(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """In the middle of writes and reads, wherever that is. Never a wrong token, never a failed start."""
    chance = random.Random(7)
    prompts = [f"Story {number}: {_PROMPT}" + "And then. " * 10 * number for number in range(6)]
    with _server(tiny_models["llama"], None) as server:
        right = {prompt: _ask(server, prompt)[0] for prompt in prompts}
    found = 0
    with _server(tiny_models["llama"], tmp_path, env=_NO_RESIDENCE) as server:
        for _ in range(200):
            prompt = chance.choice(prompts)
            answer, cached = _ask(server, prompt)
            assert answer == right[prompt]
            found += cached > 0
            _kill_worker(server, tmp_path, chance)
    assert found > 50, "later workers find what earlier ones wrote"


@full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["sliding_window", "hybrid"])
def test_a_worker_with_checkpoints_killed_a_dozen_times(
    tiny_models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    chance = random.Random(7)
    prompts = [f"Story {number}: {_PROMPT}" + "And then. " * 10 * number for number in range(3)]
    with _server(tiny_models[kind], None, *_PRECISE) as server:
        right = {prompt: _turn(server, prompt)[0] for prompt in prompts}
    with _server(tiny_models[kind], tmp_path, *_PRECISE, env=_NO_RESIDENCE) as server:
        for _ in range(12):
            prompt = chance.choice(prompts)
            assert _turn(server, prompt)[0] == right[prompt]
            _kill_worker(server, tmp_path, chance)
        for prompt in prompts:
            assert _turn(server, prompt)[0] == right[prompt]
    with _server(tiny_models[kind], tmp_path, *_PRECISE) as server:
        for prompt in prompts:
            answer, cached = _turn(server, prompt)
            assert answer == right[prompt]
            assert cached >= _LEAST_CACHED, "the worker that was not killed wrote what was missing"


_NO_RESIDENCE = {"PADDOCK_MODEL_MANAGER__MIN_RESIDENCE": "0"}


def _kill_worker(server: Server, folder: Path, chance: random.Random) -> None:
    """Mostly as soon as something changes in the folder, which is in the middle of writes."""
    before, moment = _count(folder), chance.random()
    (pid,) = server.workers()
    if moment < 0.7:
        tries = iter(range(2000))
        while next(tries, None) is not None and _count(folder) == before:
            pass
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid not in server.workers(), 60, "the worker to end")


def _count(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))

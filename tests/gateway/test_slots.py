"""`/slots` and `/props` over HTTP, with the fake engine and tiny models."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import Server, chat_body, client_of, events, wait_for
from tests.sockets import Wire, post

CHAT = "/v1/chat/completions"
LONG = "say: " + "x" * 200


def _error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def _act(server: Server, slot: int, action: str, filename: str | None = None, **query: str) -> httpx.Response:
    body = None if filename is None else {"filename": filename}
    return server.client.post(f"/slots/{slot}", params={"action": action, **query}, json=body)


def _cached(answer: dict[str, Any]) -> int:
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server("-m", "fake:", "-np", "3", "--slot-save-path", str(folder), "--props") as server:
        yield server


# ── saving, restoring, erasing ───────────────────────────────────────────────────────────────────────────────────────


def test_a_slot_is_saved_erased_and_restored(server: Server, folder: Path) -> None:
    answer = server.chat(LONG, id_slot=1)
    prompt = answer["usage"]["prompt_tokens"]
    saved = _act(server, 1, "save", "a.bin").json()
    assert saved.pop("timings")["save_ms"] > 0
    size = (folder / "a.bin").stat().st_size
    tokens = answer["usage"]["total_tokens"] - 1  # the last token is not computed
    assert saved == {"id_slot": 1, "filename": "a.bin", "n_saved": tokens, "n_written": size}
    assert _act(server, 1, "erase").json() == {"id_slot": 1, "n_erased": tokens}
    assert _act(server, 1, "erase").json() == {"id_slot": 1, "n_erased": 0}
    assert _cached(server.chat(LONG, id_slot=0, cache_prompt=True)) == 0
    assert _act(server, 0, "erase").json()["n_erased"] == tokens
    restored = _act(server, 2, "restore", "a.bin").json()
    assert restored.pop("timings")["restore_ms"] > 0
    assert restored == {"id_slot": 2, "filename": "a.bin", "n_restored": tokens, "n_read": size}
    assert server.client.get("/slots").json()[2]["n_past"] == tokens
    again = server.chat(LONG, id_slot=0)
    assert _cached(again) == prompt - 1
    assert again["choices"] == answer["choices"]


@pytest.mark.parametrize("layout", ["-kvu", "-no-kvu"])
def test_saved_slot_can_be_restored_after_a_restart(server: Server, folder: Path, layout: str) -> None:
    prompt = f"{LONG} {layout}"
    before = server.chat(prompt, id_slot=0)
    assert _act(server, 0, "save", "b.bin").status_code == 200
    with Server("-m", "fake:", "-np", "5", layout, "--slot-save-path", str(folder)) as other:
        assert _act(other, 4, "restore", "b.bin").json()["n_restored"] > 200
        after = other.chat(prompt)
        assert _cached(after) == after["usage"]["prompt_tokens"] - 1
        assert after["choices"] == before["choices"]


def test_an_action_waits_until_its_slot_is_free(tmp_path: Path) -> None:
    with (
        Server("-m", "fake:delay=0.01", "-np", "1", "--slot-save-path", str(tmp_path)) as server,
        ThreadPoolExecutor(1) as pool,
        Wire(server.url) as saving,
    ):
        with server.client.stream("POST", CHAT, json=chat_body(LONG, stream=True)) as response:
            stream = events(response)
            next(stream)
            saving.send(post("/slots/0?action=save", {"filename": "c.bin"}))
            assert server.client.get("/slots").status_code == 200  # the worker has received the save before it
            waiting = pool.submit(server.chat, "say: next")
            assert len(list(stream)) > 100
        # The save includes the running request, and no later request ran before it.
        assert saving.answer().json()["n_saved"] > 400
        assert waiting.result()["choices"][0]["message"]["content"] == "next"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a", "a/b", "/etc/passwd", "..\\a", ".hidden", "a\0b", "a\nb", "x" * 201, "é" * 101],
)
def test_a_file_name_cannot_leave_the_folder(server: Server, folder: Path, name: str) -> None:
    before = sorted(os.listdir(folder.parent))
    for action in ("save", "restore"):
        assert _error(_act(server, 0, action, name), 400)["param"] == "filename"
    assert sorted(os.listdir(folder.parent)) == before


def test_errors_name_the_field(server: Server, folder: Path) -> None:
    server.chat("say: x", id_slot=0)
    assert _error(_act(server, 0, "explode"), 400)["param"] == "action"
    assert _error(server.client.post("/slots/0"), 400)["param"] == "action"
    assert _error(_act(server, 3, "erase"), 400)["param"] == "id_slot"
    for slot in ("x", "-1", "99999999999999999999"):
        assert _error(server.client.post(f"/slots/{slot}?action=erase"), 400)["param"] == "id_slot"
    assert _error(_act(server, 0, "save"), 400)["param"] == "filename"
    assert _error(server.client.post("/slots/0?action=save", json={"filename": 3}), 400)["param"] == "filename"
    assert _error(server.client.post("/slots/0?action=save", json={"file": "x"}), 400)["param"] == "filename"
    assert _error(server.client.post("/slots/0?action=save", content=b"{"), 400)["code"] == "invalid_json"
    error = _error(server.client.post("/slots/0?action=erase&model=a", json={"model": "b"}), 400)
    assert error["param"] == "model"
    assert "No such file" in _error(_act(server, 0, "restore", "none.bin"), 400)["message"]
    (folder / "noise.bin").write_bytes(b"PADDSLOT" + bytes(100))
    assert _error(_act(server, 0, "restore", "noise.bin"), 400)["param"] == "filename"
    (folder / "link.bin").symlink_to(folder / "noise.bin")
    assert _error(_act(server, 0, "restore", "link.bin"), 400)["param"] == "filename"
    assert _error(_act(server, 0, "save", "link.bin"), 400)["param"] == "filename"
    server.chat("say: x", id_slot=0, cache_prompt=False)
    assert "no stored tokens" in _error(_act(server, 0, "save", "d.bin"), 400)["message"]


def test_a_file_of_another_model_or_cache_is_refused(
    server: Server, folder: Path, tiny_models: dict[str, Path]
) -> None:
    server.chat(LONG, id_slot=0)
    _act(server, 0, "save", "fake.bin")
    with Server("-m", "fake:", "-ctk", "q8_0", "--slot-save-path", str(folder)) as other:
        error = _error(_act(other, 0, "restore", "fake.bin"), 400)
        assert "cache_type_k: f16, but this model has q8_0" in error["message"]
    with Server("-m", str(tiny_models["llama"]), "--slot-save-path", str(folder)) as other:
        assert "another model" in _error(_act(other, 0, "restore", "fake.bin"), 400)["message"]
        assert other.chat("the", max_tokens=2)["choices"], "and nothing came of it"


def test_models_that_cannot_be_saved_are_refused(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    with Server("-m", "fake:") as server:
        assert "--slot-save-path" in _error(_act(server, 0, "save", "a.bin"), 501)["message"]
        assert "--slot-save-path" in _error(_act(server, 0, "restore", "a.bin"), 501)["message"]
        server.chat("say: x", id_slot=0)
        assert _act(server, 0, "erase").json()["n_erased"] > 1
    with Server("-m", "fake:", "--cache-ram", "0", "--slot-save-path", str(tmp_path)) as server:
        assert "--cache-ram" in _error(_act(server, 0, "save", "a.bin"), 501)["message"]
    with Server("-m", str(tiny_models["recurrent"]), "--slot-save-path", str(tmp_path)) as server:
        server.chat("the", max_tokens=2, id_slot=0)
        for action in ("save", "restore"):
            assert _error(_act(server, 0, action, "a.bin"), 501)["code"] == "not_supported"
        assert _act(server, 0, "erase").json()["n_erased"] > 1
        props = server.client.get("/props").json()
        assert (props["reuse"], props["kv_cache"]["state_format"]) == ("checkpoint", "whole")
        assert server.chat("the", max_tokens=2)["choices"]


def test_slots_of_several_models(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    models = tiny_models["llama"].parent
    with Server("--models-dir", str(models), "-np", "2", "--slot-save-path", str(tmp_path)) as server:
        body = chat_body("the of and", max_tokens=3, id_slot=1, model="llama")
        assert server.client.post(CHAT, json=body).status_code == 200
        assert _act(server, 1, "save", "a.bin", model="llama").json()["n_saved"] > 3
        response = server.client.post("/slots/0?action=restore", json={"filename": "a.bin", "model": "llama"})
        assert response.json()["n_restored"] > 3
        assert _error(_act(server, 1, "save", "a.bin"), 400)["param"] == "model"
        assert _error(_act(server, 1, "save", "a.bin", model="none"), 404)["param"] == "model"
        assert server.client.get("/props?model=hybrid").json()["loaded"] is False
        assert len(server.workers()) == 1


# ── /slots and /props ────────────────────────────────────────────────────────────────────────────────────────────────


def test_slots_show_times_and_parameters(server: Server) -> None:
    server.chat(LONG + "!", id_slot=2, temperature=0.5, logit_bias=[[5, False], [6, 1.5]], seed=9)
    slot = server.client.get("/slots").json()[2]
    assert (slot["is_processing"], slot["speculative"], slot["n_decoded"]) == (False, True, 201)
    assert slot["next_token"] == [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}]
    assert (slot["params"]["temperature"], slot["params"]["seed"], slot["params"]["max_tokens"]) == (0.5, 9, -1)
    assert slot["params"]["logit_bias"] == [[5, False], [6, 1.5]]
    timings = slot["timings"]
    assert timings["prompt_n"] == slot["n_prompt_tokens"] - slot["n_prompt_tokens_cache"] > 0
    assert timings["predicted_n"] == 201
    assert timings["prompt_per_second"] == pytest.approx(1000 * timings["prompt_n"] / timings["prompt_ms"])
    assert timings["predicted_per_second"] == pytest.approx(200_000 / timings["predicted_ms"])


def test_fail_on_no_slot() -> None:
    with Server("-m", "fake:delay=0.02", "-np", "1") as server:
        url = "/slots?fail_on_no_slot=1"
        assert server.client.get(url).json() == [], "it is not loaded"
        with server.client.stream("POST", CHAT, json=chat_body(LONG, stream=True, max_tokens=150)) as response:
            stream = events(response)
            next(stream)
            with client_of(server.url) as other:
                assert _error(other.get(url), 503)["type"] == "unavailable_error"
                (slot,) = other.get("/slots").json()
        assert slot["next_token"][0]["n_remain"] == 150 - slot["n_decoded"]
        assert slot["next_token"][0]["has_next_token"] is True
        assert slot["timings"]["prompt_ms"] > 0
        wait_for(lambda: server.client.get(url).status_code == 200, 20, "the slot to be free")
        assert _error(server.client.get("/slots?fail_on_no_slot=maybe"), 400)["param"] == "fail_on_no_slot"


def test_slots_can_be_hidden() -> None:
    with Server("-m", "fake:", "--no-slots") as server:
        assert _error(server.client.get("/slots"), 501)["type"] == "not_supported_error"
        assert server.client.get("/props").json()["endpoint_slots"] is False


def test_props_load_no_model() -> None:
    with Server("-m", "fake:n_ctx=512", "-np", "2", "-ctk", "q8_0", "--cache-ram", "64") as server:
        asleep = server.client.get("/props").json()
        assert server.workers() == []
        assert (asleep["loaded"], asleep["is_sleeping"], asleep["total_slots"]) == (False, True, 2)
        server.chat("say: x")
        awake = server.client.get("/props").json()
    assert set(asleep) == set(awake)
    assert (awake["loaded"], awake["is_sleeping"], awake["total_slots"]) == (True, False, 2)
    assert awake["default_generation_settings"]["n_ctx"] == 512
    assert awake["default_generation_settings"]["params"]["temperature"] == 0.8
    assert (awake["model_path"], awake["bos_token"], awake["eos_token"]) == ("fake:n_ctx=512", "<s>", "</s>")
    assert awake["deterministic"] == {"default": False, "method": "own_steps", "together": 3}
    assert awake["reuse"] == "prefix"
    assert awake["kv_cache"] == {
        "layout": "streams",
        "type_k": "q8_0",
        "type_v": "f16",
        "cells": 1024,
        "bytes_per_token": 1024,
        "state_format": "keys_values",
        "ram_bytes": 64 << 20,
        "disk_bytes": 0,
    }
    assert "fake" in awake["build_info"]


def _sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_props_of_a_real_model_show_its_template(demo_server: Server) -> None:
    demo_server.chat("Hi", max_tokens=1)
    props = demo_server.client.get("/props").json()
    assert "<|im_start|>" in props["chat_template"]
    library = props["libllama"]
    assert f"llama.cpp {library['version']}" in props["build_info"]
    assert library["sha256"][Path(library["path"]).resolve().name] == _sha256(library["path"])
    assert library["build_id"] and library["origin"] and set(library["features"]) & {"NEON", "SSE3"}
    assert props["sampler_profile"] >= 2
    page = demo_server.client.get("/metrics").text
    (info,) = [line for line in page.splitlines() if line.startswith("paddock_engine_info{")]
    assert f'llama_cpp_commit="{props["llama_cpp_commit"] or ""}"' in info
    assert f'sampler_profile="{props["sampler_profile"]}"' in info
    (info,) = [line for line in page.splitlines() if line.startswith("paddock_libllama_info{")]
    for label in ("version", "build_id", "origin"):
        assert f'{label}="{library[label]}"' in info
    assert f'sha256="{_sha256(library["path"])}"' in info
    assert props["deterministic"] == {"default": False, "method": "alone", "together": 1}
    assert props["kv_cache"]["layout"] == "unified"


def test_props_list_enabled_endpoints() -> None:
    def endpoints(*flags: str) -> dict[str, bool]:
        with Server("-m", "fake:", *flags) as server:
            props = server.client.get("/props").json()
        return {name: props[f"endpoint_{name}"] for name in ("slots", "props", "metrics")}

    assert endpoints("--metrics", "--props") == {"slots": True, "props": True, "metrics": True}
    assert endpoints("--no-metrics", "--no-slots") == {"slots": False, "props": False, "metrics": False}


def test_chat_template_can_be_changed_and_reset() -> None:
    with Server("-m", "fake:", "--props") as server:

        def rendered() -> str:
            return str(server.client.post("/apply-template", json=chat_body("hello")).json()["prompt"])

        own = rendered()
        template = "{% for message in messages %}<{{ message.content | upper }}>{% endfor %}"
        assert server.client.post("/props", json={"chat_template": template}).json() == {"success": True}
        assert rendered() == "<HELLO>"
        assert server.client.get("/props").json()["chat_template"] == template
        refused = _error(server.client.post("/props", json={"chat_template": "llama5"}), 400)
        assert refused["param"] == "chat_template"
        assert server.client.post("/props", json={"chat_template": ""}).json() == {"success": True}
        assert rendered() == own


def test_unknown_properties_are_refused(server: Server, fake_server: Server) -> None:
    assert server.client.post("/props", json={}).json() == {"success": True}
    assert _error(server.client.post("/props", json={"temperature": 1}), 400)["param"] == "temperature"
    assert _error(server.client.post("/props", json=[]), 400)["code"] == "invalid_request"
    assert "--props" in _error(fake_server.client.post("/props", json={}), 501)["message"]

"""llama-server's preset files: sections of options become models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli.model_presets import DEFAULT, apply_presets, parse, read_presets
from paddock.cli.serve import command
from paddock.cli.sources import Sources
from paddock.config import load_settings
from paddock.errors import SettingsError
from tests.forking import run_command
from tests.hub import Hub, Repository
from tests.server import Server, wait_for

_EXAMPLE = """\
version = 1

; settings of all models
[*]
c = 8192
n-gpu-layers = 8
temp = 0.5

[ggml-org/MY-MODEL-GGUF:q8_0]
--n-gpu-layers = 123   # a comment
jinja = true
c = 4096
LLAMA_ARG_CACHE_RAM = 0
no-kv-offload = 1
cont-batching = off
mmap = false
temp = 0.25
n-predict = -1
alias = one, two
tags = small,quick
model-draft = ./draft.gguf
model-draft = /models/draft.gguf
load-on-startup = true
stop-timeout = 5
port = 9000

[custom_model]
model = my-models/custom.gguf
"""


def _applied(folder: Path, text: str, flags: dict[str, Any] | None = None) -> dict[str, Any]:
    file = folder / "presets.ini"
    file.write_text(text, "utf-8")
    given = flags or {}
    settings = load_settings(flags=given, environ={}, dotenv=folder / "none")
    return apply_presets(read_presets(file, command), settings, given, Sources())


def test_an_example_of_llama_servers_manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")  # of the command line, not of a section
    found = _applied(tmp_path, _EXAMPLE)
    models = found.pop("model_manager.models")
    assert found == {
        "model_manager.n_ctx": 8192,
        "model_manager.n_gpu_layers": 8,
        "model_manager.defaults": {"temperature": 0.5},
    }
    named = models.pop("ggml-org/MY-MODEL-GGUF:Q8_0")
    assert models == {"custom_model": {"path": str(Path("my-models/custom.gguf").absolute())}}
    assert {name: named[name] for name in ("n_gpu_layers", "n_ctx", "cache_ram", "kv_offload", "cont_batching")} == {
        "n_gpu_layers": 123,
        "n_ctx": 4096,
        "cache_ram": 0,
        "kv_offload": False,
        "cont_batching": False,
    }
    assert named["load_mode"] == "none"
    assert named["defaults"] == {"temperature": 0.25, "n_predict": -1}
    flags = {**found, "model_manager.models": {"a": named}}
    model = load_settings(flags=flags, environ={}, dotenv=tmp_path / "none").model_manager.models["a"]
    assert model.aliases == ["ggml-org/MY-MODEL-GGUF:q8_0", "one", "two"]
    assert (model.tags, model.model_draft, model.preload) == (["small", "quick"], Path("/models/draft.gguf"), True)


def test_the_command_line_wins_over_sections(tmp_path: Path) -> None:
    flags = {"model_manager.n_ctx": 16, "model_manager.defaults": {"temperature": 1.0}}
    found = _applied(tmp_path, "[*]\nc = 1\ntemp = 0\ntop-k = 1\n[a]\nmodel=fake:\nc = 2\ntop-k = 3\ntemp = 2\n", flags)
    assert found["model_manager.n_ctx"] == 16
    assert found["model_manager.defaults"] == {"temperature": 1.0, "top_k": 1}
    assert found["model_manager.models"] == {"a": {"path": "fake:", "defaults": {"top_k": 3}}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]\nctx-siz = 1", "line 2, section [a]: unknown key 'ctx-siz'; did you mean 'ctx-size'?"),
        ("[a]\n\nlist-devices = 1", "line 3, section [a]: unknown key 'list-devices'"),
        ("[a]\nlookup-cache-static = x", "line 2, section [a]: --lookup-cache-static is not supported"),
        ("[a]\nc = many", "line 2, section [a]: Invalid value for '-c'"),
        ("[a]\ncpu-moe = perhaps", "line 2, section [a]: cpu-moe: expected on or off, got 'perhaps'"),
        ("[a]\nload-on-startup = 2", "line 2, section [a]: load-on-startup: expected on or off"),
        ("[a]\nhf-file = x.gguf", "section [a]: --hf-file needs the repository"),
        ("[a]\nwhat is this", "line 2: expected [NAME] or KEY = VALUE, got 'what is this'"),
        ("[a]\n[b]\n[a]", "line 3: there is another section [a]"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        _applied(tmp_path, text)
    assert error.value.message.startswith(f"{tmp_path / 'presets.ini'}, ")
    assert problem in error.value.message


def test_a_wrong_file_ends_the_start(tmp_path: Path) -> None:
    done = run_command("serve", "--port", "0", "--models-preset", "none.ini", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot read the presets none.ini: No such file or directory" in done.stderr


_WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


@given(st.dictionaries(_WORDS, st.dictionaries(_WORDS.filter(lambda key: key[0].isalpha()), _WORDS), min_size=1))
def test_sections_and_keys_are_read_as_written(sections: dict[str, dict[str, str]]) -> None:
    text = "\n".join(
        line
        for name, keys in sections.items()
        for line in (f"[ {name} ] ; comment", "", *(f"{key}={value} # more" for key, value in keys.items()))
    )
    found = {section.name: {line.key: line.value for line in section.lines} for section in parse(text, "f")}
    wanted = {name: {key: value for key, value in keys.items() if key != "version"} for name, keys in sections.items()}
    assert found == {name: keys for name, keys in wanted.items() if keys or name != DEFAULT}


def test_presets_are_served_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "presets.ini"
    file.write_text("[*]\ntop-k = 7\n[loud]\nmodel = fake:\nalias = l\nload-on-startup = 1\n[quiet]\nmodel = fake:\n")
    environment = {"LLAMA_ARG_TOP_K": "9", "LLAMA_ARG_TOP_P": "0.5"}
    with Server("--models-preset", str(file), "--temp", "0.25", env=environment) as server:

        def cards() -> dict[str, Any]:
            return {card["id"]: card for card in server.client.get("/v1/models").json()["data"]}

        wait_for(lambda: cards()["loud"]["status"]["value"] == "loaded", 20, "the first model to be loaded")
        assert cards()["quiet"]["status"]["value"] == "unloaded"
        assert cards()["loud"]["source"] == "preset"
        answer = server.client.post("/completion", json={"model": "l", "prompt": "a", "n_predict": 1}).json()
        assert (answer["model"], answer["generation_settings"]["top_k"]) == ("loud", 7)
        assert answer["generation_settings"]["temperature"] == 0.25
        assert answer["generation_settings"]["top_p"] == 0.5, "a variable that no preset sets"
        file.write_text("[new]\nmodel = fake:\n")
        assert server.client.post("/admin/reload").json()["models"] == ["new"]
        file.write_text("[new]\nmodle = fake:\n")
        wrong = server.client.post("/admin/reload")
        assert wrong.status_code == 400 and "unknown key 'modle'; did you mean 'model'?" in wrong.text


def test_a_preset_of_a_repository_and_of_a_file_of_the_directory(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "local.gguf").symlink_to(tiny_models["llama"])
    file = tmp_path / "presets.ini"
    file.write_text("[remote]\nhf-repo = house/tiny:Q4_K_M\nc = 256\n[local]\nc = 512\n[house/tiny:Q4_K_M]\nc = 128\n")
    with Hub(house__tiny=Repository({"tiny-Q4_K_M.gguf": tiny_models["draft"].read_bytes()})) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
        with Server("--models-dir", str(folder), "--models-preset", str(file), env=environment) as server:
            shown = {
                name: server.client.get("/props", params={"model": name}).json()
                for name in ("remote", "local", "house/tiny:Q4_K_M")
            }
    assert {name: props["context"]["requested"] for name, props in shown.items()} == {
        "remote": 256,
        "local": 512,
        "house/tiny:Q4_K_M": 128,
    }
    assert shown["remote"]["model_path"] == shown["house/tiny:Q4_K_M"]["model_path"]
    assert shown["local"]["model_path"] == str(folder / "local.gguf")


def test_without_autoload_only_an_operator_loads(tmp_path: Path) -> None:
    file = tmp_path / "presets.ini"
    file.write_text("[a]\nmodel = fake:\n[b]\nmodel = fake:\n")
    body = {"model": "a", "prompt": "x", "n_predict": 1}
    with Server("--models-preset", str(file), "--no-models-autoload") as server:
        router = server.client.get("/props").json()
        assert (router["role"], router["models_autoload"], router["max_instances"]) == ("router", False, 0)
        refused = server.client.post("/completion", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_loaded")
        assert server.client.post("/tokenize", json={"model": "a", "content": "x"}).status_code == 400
        assert server.client.post("/completion?autoload=true", json={**body, "model": "b"}).status_code == 200
        assert server.client.post("/models/load", json={"model": "a"}).status_code == 200
        wait_for(lambda: server.client.post("/completion", json=body).status_code == 200, 20, "the load")

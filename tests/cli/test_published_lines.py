"""Published llama-server command lines start and answer, or are refused by name for a stated reason."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paddock.cli.llama_server import PRESETS, VARIABLES
from tests import tiny_projectors
from tests.forking import run_command
from tests.server import Server, chat_body, wait_for
from tests.tiers import full, is_full_tier

_LINES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "llama_server_lines.toml").read_text("utf-8"))[
    "line"
]
_STARTED_IN_THE_FAST_TIER = 6
_PROGRAM = re.compile(r"(.*/)?llama-server(\.exe|-\w+)?|ghcr\.io/ggml-org/llama\.cpp:.*")
_MODEL = {"-m", "--model", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"}
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body("hello", max_tokens=2),
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/v1/embeddings": {"input": "hello"},
    "/embeddings": {"content": "hello"},
    "/v1/rerank": {"query": "hello", "documents": ["hello", "no"]},
}


def _named(line: dict[str, Any]) -> str:
    return str(line["source"])


def _arguments(line: dict[str, Any], models: dict[str, Path], folder: Path) -> list[str]:
    """The arguments of a line, with our model and without what depends on the machine."""
    words = shlex.split(line["command"].replace("\\\n", " "))
    program = next(index for index, word in enumerate(words) if _PROGRAM.fullmatch(word))
    words = [word for part in words[program + 1 :] for word in (PRESETS[part].split() if part in PRESETS else [part])]
    model = models[line.get("model", "llama")]
    swapped: dict[str, str] = {
        "--host": "127.0.0.1",
        "--models-dir": str(model.parent),
        "-md": str(models["draft"]),
        "--mmproj": str(folder / "mmproj.gguf"),
        "--model-draft": str(models["draft"]),
        "--chat-template-file": str(folder / "template.jinja"),
        "-dev": "none",
        "--device": "none",
        "--device-draft": "none",
    }
    tiny_projectors.llava(folder / "mmproj.gguf")
    (folder / "template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", "utf-8")
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _MODEL or word == "--port":
            next(rest)
        elif word in swapped:
            next(rest)
            found += [word, swapped[word]]
        elif word in ("-ot", "--override-tensor"):
            found += [word, re.sub(r"CUDA\d", "CPU", next(rest))]
        else:
            found.append(word)
    return found if "--models-dir" in found else [*found, "-m", str(model)]


def _environment(line: dict[str, Any]) -> dict[str, str]:
    """The variables of a line, without those that the arguments of the test set."""
    set_here = ("LLAMA_ARG_MODEL", "LLAMA_ARG_HOST", "LLAMA_ARG_PORT")
    outside = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return outside | {name: value for name, value in line.get("environment", {}).items() if name not in set_here}


def test_there_are_more_than_twenty_lines() -> None:
    assert len(_LINES) > 30
    assert len({_named(line) for line in _LINES}) == len(_LINES)
    assert sum("refused" in line for line in _LINES) < 6


@pytest.mark.parametrize("line", _LINES, ids=_named)
def test_a_published_line_is_understood(line: dict[str, Any], tiny_models: dict[str, Path], tmp_path: Path) -> None:
    arguments = _arguments(line, tiny_models, tmp_path)
    done = run_command("serve", "--dry-run", *arguments, env=_environment(line), cwd=tmp_path)
    if "refused" in line:
        assert (done.returncode, line["refused"] in done.stdout + done.stderr) == (2, True), done.stdout
    else:
        assert (done.returncode, "refused" in done.stdout) == (0, False), done.stdout + done.stderr


@full
@pytest.mark.parametrize("number", range(len(_LINES)), ids=map(_named, _LINES))
def test_a_published_line_starts_and_answers(number: int, tiny_models: dict[str, Path], tmp_path: Path) -> None:
    line = _LINES[number]
    if "refused" in line:
        pytest.skip("refused by name")
    if not is_full_tier() and number % (len(_LINES) // _STARTED_IN_THE_FAST_TIER):
        pytest.skip("make test-all starts it")
    arguments = _arguments(line, tiny_models, tmp_path)
    environment = _environment(line) | {"PADDOCK_MODEL_MANAGER__N_THREADS": "1"}
    with Server(*arguments, env=environment, cwd=tmp_path, lazy="--models-dir" in arguments) as server:
        wait_for(lambda: server.client.get("/health").status_code == 200, 30, "the model to be loaded")
        if "--api-key" in arguments:
            server.client.headers["Authorization"] = f"Bearer {arguments[arguments.index('--api-key') + 1]}"
        names = [model["id"] for model in server.client.get("/v1/models").json()["data"]]
        name = "llama" if "--models-dir" in arguments else names[0]
        route = line.get("request", "/v1/chat/completions")
        response = server.client.post(route, json={"model": name, **_BODIES[route]})
        assert response.status_code == 200, response.text

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from paddock.cli.options import given_settings, key_of, setting_options
from paddock.cli.request_defaults import PARAMETER
from paddock.cli.serve import command
from paddock.config import Settings, load_settings, load_with_sources
from tests.forking import run_command
from tests.server import Server

# Every llama-server command line of the documents Paddock answers to, with the name of the program replaced.
SEED_COMMANDS = """
paddock serve --model ~/.cache/models/qwen2.5-0.5b-instruct-q4_k_m.gguf --host 127.0.0.1 --port 8080 --metrics --no-webui --parallel 1 --no-cont-batching
paddock serve -m models/llama-2-7b.Q4_K_M.gguf
paddock serve -m model.gguf --host 0.0.0.0 --port 8080
paddock serve -m model.gguf -ngl 35
paddock serve -m model.gguf -c 4096
paddock serve -m model.gguf --parallel 4
paddock serve -m models/llama-2-7b.Q4_K_M.gguf --host 0.0.0.0 --port 8080 -c 4096 -ngl 35 --parallel 4 --cont-batching --flash-attn --metrics --log-format text --api-key "your-secret-key"
paddock serve -m model.gguf --parallel 8
paddock serve -m model.gguf --cont-batching
paddock serve -m model.gguf --flash-attn
paddock serve -m model.gguf -ngl 45
paddock serve -m model.gguf -ngl 80
paddock serve -m model.gguf -ngl 999 --verbose
paddock serve -m model.gguf --api-key "your-secret-key"
paddock serve -m llama-2-7b-chat.gguf --port 8080
paddock serve -m llama-2-13b-instruct.gguf --port 8081
paddock serve -m codellama-7b.gguf --port 8082
paddock serve -m model.gguf --log-format json
paddock serve -m /models/llama-2-7b-chat.Q4_K_M.gguf --host 0.0.0.0 --port 8080 -c 4096 -ngl 35 --parallel 8 --cont-batching --flash-attn --metrics --log-format json --api-key secret
paddock serve --model models/Meta-Llama-3.1-8B-Instruct-Q8_0.gguf --ctx-size 32768 --n-gpu-layers -1 --port 8000 --cache-type-k f16 --cache-type-v f16
paddock serve -m model.gguf --ngl 35 --log-disable --slot-save-path /tmp/slots
""".strip().splitlines()


def _settings(line: str) -> Settings:
    context = command.make_context("serve", shlex.split(line)[2:])
    return load_settings(flags=given_settings(context.params), environ={}, dotenv=Path("/nonexistent"))


@pytest.mark.parametrize("line", SEED_COMMANDS)
def test_every_command_line_of_the_seeds_parses(line: str) -> None:
    settings = _settings(line)
    assert settings.model_manager.model is not None


def test_flags_become_settings() -> None:
    settings = _settings(SEED_COMMANDS[6])
    assert (settings.server.host, settings.server.port, settings.server.api_keys) == (
        "0.0.0.0",
        8080,
        ["your-secret-key"],
    )
    manager = settings.model_manager
    assert (manager.n_ctx, manager.n_gpu_layers, manager.flash_attn) == (4096, 35, "on")
    assert _settings("paddock serve -fa off -ctk q8_0 -t 3").model_manager.flash_attn == "off"
    assert _settings("paddock serve -ngl all").model_manager.n_gpu_layers == "all"
    assert _settings("paddock serve -ngl auto").model_manager.n_gpu_layers == "auto"
    manager = _settings("paddock serve --lora a,'\"b,c\"' --lora d --lora-scaled e:f:0.5,g:-2").model_manager
    assert [(str(path), scale) for path, scale in manager.adapters] == [
        *(("a", 1.0), ("b,c", 1.0), ("d", 1.0), ("e:f", 0.5), ("g", -2.0)),
    ]
    manager = _settings("paddock serve --lora a --lora-init-without-apply").model_manager
    assert manager.adapters == [(Path("a"), 0.0)]
    assert _settings("paddock serve --api-key a,b --api-key c").server.api_keys == ["a", "b", "c"]
    manager = _settings("paddock serve --embeddings --pooling cls --rerank").model_manager
    assert (manager.embedding, manager.pooling, manager.reranking) == (True, "cls", True)
    assert _settings("paddock serve --no-sandbox").model_manager.sandbox == "off"
    assert _settings("paddock serve --sandbox required").model_manager.sandbox == "required"
    assert _settings("paddock serve -v").server.log_level == "DEBUG"
    manager = _settings("paddock serve -kvu -nocb --preload -ngld all --memory-limit 1GiB").model_manager
    assert (manager.kv_unified, manager.cont_batching, manager.preload) == (True, False, ["default"])
    assert (manager.n_gpu_layers_draft, manager.memory_limit) == ("all", 1024**3)


def test_every_flag_of_a_setting_sets_it() -> None:
    """Every flag sets its own key, and the setting accepts its value."""
    arguments = {"N": "7", "P": "0.5", "SECONDS": "7", "MIB": "7", "SIZE": "7GiB", "FILE:SCALE,...": "a.gguf:0.5"}
    arguments |= {"on|off|auto": "auto", "N,...": "3,1", "PATTERN=BUFFER,...": "exps=CPU"}
    arguments |= {"KEY=TYPE:VALUE,...": "a.b=int:3", "PREFIX": "/word"}
    arguments |= {"HEX": "f", "FIRST-LAST": "0-3", "0|1": "1", "-1...3": "2", "on|off": "on", "HOST:PORT,...": "a:1"}
    arguments |= {"METHOD,...": "GET", "HEADER,...": "x-word", "TEXT": "{word}", "TEXT|NAME": "{word}"}
    arguments |= {"NAME,...": "claude-code", "none|ngram|draft|auto": "ngram-mod,draft-simple"}
    arguments |= {"HH:MM-HH:MM,...": "22:00-06:00", "HOST,...": "example.org", "NAME=URL": "a=http://b"}
    for option in setting_options():
        if (option.name or "").startswith(PARAMETER):
            continue  # test_llama_server.py tests the defaults of requests
        if option.is_flag:
            argument = []
        elif isinstance(option.type, click.Choice):
            argument = [option.type.choices[-1]]
        else:
            argument = [arguments.get(option.metavar or "", "http://word")]
        for flag in [*option.opts, *option.secondary_opts]:
            given = given_settings(command.make_context("serve", [flag, *argument]).params)
            assert next(iter(given)) == key_of(option), flag
            loaded = load_with_sources(flags=given, environ={}, dotenv=Path("/nonexistent"))
            assert loaded.sources[key_of(option) or ""].kind == "flag"


def _paddock(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command(*args, cwd=cwd)


def _one_line_failure(status: int, stdout: str, stderr: str) -> str:
    lines = stderr.strip().splitlines()
    assert status == 1
    assert len(lines) == 1, stderr
    assert stdout == ""
    assert lines[0].startswith("paddock: ")
    return lines[0]


def test_a_failed_start_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        done = _paddock("serve", "-m", "fake:", "--port", port, cwd=tmp_path)
    line = _one_line_failure(done.returncode, done.stdout, done.stderr)
    assert f"port {port}: Address already in use" in line


# One process for many command lines: it takes longer to start than to find what is wrong with them.
_EACH = """
import json, sys
from click.testing import CliRunner
from paddock.cli import main
for args in json.load(sys.stdin):
    done = CliRunner().invoke(main, ["serve", *args])
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""


def test_every_error_names_its_cause(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0" + (1).to_bytes(8, "little") * 2 + b"\xff" * 24)
    (tmp_path / "broken.json").write_text('{"server": {\n"port": 80,}}')
    (tmp_path / "exact.json").write_text('{"model_manager": {"deterministic": true}}')
    mistakes = {
        ("--models-dir", "nowhere"): "nowhere does not exist",
        ("-m", "none.gguf"): "none.gguf does not exist",
        ("-m", "cut.gguf"): "truncated",
        ("--config", "broken.json"): "broken.json, line 2, column 12",
        ("--config", "none.json"): "none.json does not exist",
        ("-m", "fake:", "--port", "99999"): "server.port",
        ("-m", "fake:", "--ssl-key-file", "key.pem"): "both ssl_key_file and ssl_cert_file",
        ("-m", "fake:", "--api-key-file", "none.txt"): "none.txt",
        ("-m", "fake:", "--api-key", ""): "the API key 'api-key-1' is empty",
        ("-m", "fake:", "--api-key", "a,"): "the API key 'api-key-2' is empty",
        ("-m", "fake:", "--api-key", "a,a"): "'api-key-1' and 'api-key-2' are the same",
        ("-m", "fake:", "--slot-save-path", "nowhere"): "nowhere does not exist",
        ("-m", "fake:", "--reranking", "--pooling", "mean"): "reranking needs the pooling",
        ("-m", "fake:", "--lora", "none.gguf"): f"cannot read the adapter {tmp_path}/none.gguf: No such file",
        ("-m", "fake:", "--lora-scaled", "a.gguf"): "a path, a colon and a scale",
        ("-m", "fake:", "--lora-scaled", "a.gguf:1e9"): "less than or equal to 100",
        ("--models-dir", ".", "--lora", "a.gguf"): "adapters need a single model",
        (
            "-m",
            "fake:",
            "--context-shift",
            "--config",
            "exact.json",
        ): "model 'fake': context_shift (--context-shift) and",
        ("-m", "fake:", "--keep", "-2"): "model_manager.defaults.n_keep",
        ("-m", "fake:", "--host", "no.such.host.invalid"): "cannot be resolved",
    }
    done = subprocess.run(
        [sys.executable, "-c", _EACH], input=json.dumps(list(mistakes)),
        capture_output=True, text=True, timeout=100, cwd=tmp_path, env={**os.environ, "PADDOCK_SERVER__PORT": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for why, line in zip(mistakes.values(), done.stdout.splitlines(), strict=True):
        assert why in _one_line_failure(*json.loads(line))


def test_an_unknown_flag_is_refused(tmp_path: Path) -> None:
    done = _paddock("serve", "--prot", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_context_shift_is_not_deterministic(tmp_path: Path) -> None:
    done = _paddock("serve", "-m", "fake:", "--context-shift", "--deterministic", cwd=tmp_path)
    assert done.returncode == 2
    assert "--context-shift and --deterministic are mutually exclusive" in done.stderr


def test_help_and_version(tmp_path: Path) -> None:
    assert "serve" in _paddock("--help", cwd=tmp_path).stdout
    assert "--flash-attn" in _paddock("serve", "--help", cwd=tmp_path).stdout
    assert _paddock("--version", cwd=tmp_path).stdout.startswith("paddock, version ")


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, paddock.cli; print([m for m in ('pydantic', 'fastapi', 'numpy', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "[]"


# ── who can reach it ─────────────────────────────────────────────────────────────────────────────────────────────────


def _said(*args: str) -> list[str]:
    with Server("-m", "fake:", *args) as server:
        server.stop()
        return server.output


def test_an_exposed_server_without_keys_prints_a_warning() -> None:
    warned = _said("--host", "0.0.0.0")
    assert any("WARNING: no API key is required" in line for line in warned)
    assert any("--api-key" in line for line in warned)
    assert len(warned) >= 5, "it cannot be missed"
    assert any("WARNING" in line for line in _said("--host", "::"))
    for args in (("--host", "0.0.0.0", "--api-key", "a"), ("--host", "localhost"), ()):
        assert not any("WARNING" in line for line in _said(*args))


def test_the_json_log_of_an_exposed_server_has_the_warning() -> None:
    lines = [json.loads(line) for line in _said("--host", "0.0.0.0", "--log-format", "json") if line.startswith("{")]
    (warning,) = [line for line in lines if line["level"] == "warning"]
    assert warning["message"] == "no API key is required"
    assert "--api-key" in warning["cure"]

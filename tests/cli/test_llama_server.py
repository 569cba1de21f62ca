"""Every option of llama-server has an answer: a setting, a reason why it is not needed, or a refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli.dry_run import report
from paddock.cli.llama_options import OPTIONS
from paddock.cli.llama_server import PRESETS, VARIABLES, ignored_options, unknown_variables
from paddock.cli.options import given_settings
from paddock.cli.serve import command

# The options of the llama-server of llama-cpp-python 0.3.36, as its own help lists them.
_LLAMA_SERVER = json.loads((Path(__file__).parent / "llama_server_options.json").read_text("utf-8"))
_FLAGS = {name: option for option in command.params for name in [*option.opts, *option.secondary_opts]}


def _context(*arguments: str) -> click.Context:
    return command.make_context("serve", list(arguments))


def _settings(*arguments: str) -> dict[str, Any]:
    return given_settings(_context(*arguments).params)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_every_option_has_an_answer() -> None:
    help_names = {*command.context_settings["help_option_names"], "--version"}
    known = _FLAGS.keys() | PRESETS.keys() | help_names
    assert not [name for option in _LLAMA_SERVER for name in option["names"] if name not in known]


def test_every_option_takes_as_many_arguments_as_in_llama_server() -> None:
    for option in _LLAMA_SERVER:
        for name in option["names"]:
            ours = _FLAGS.get(name)
            if ours is not None:
                assert (0 if getattr(ours, "is_flag", False) else ours.nargs) == option["arguments"], name


def test_every_variable_has_an_answer() -> None:
    others = {"HF_TOKEN"}  # huggingface_hub reads it
    variables = {option["variable"] for option in _LLAMA_SERVER if option["variable"]}
    assert variables - others == VARIABLES.keys()


@given(st.sampled_from(OPTIONS), st.data())
def test_an_option_without_a_setting_is_refused_or_ignored_with_a_reason(option: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(option.names))
    arguments = ["7"] * option.arguments
    if option.is_refused:
        with pytest.raises(click.UsageError, match="is not supported: ") as refusal:
            _context(name, *arguments)
        assert refusal.value.exit_code == 2
        assert option.reason in refusal.value.message
    else:
        context = _context(name, *arguments)
        assert [reason for _, reason in ignored_options(context)] == [option.reason]
        assert given_settings(context.params) == {}


def test_all_refused_options_are_named_at_once() -> None:
    with pytest.raises(click.UsageError) as refusal:
        _context("-lcs", "file", "--temp", "1", "--tools", "all")
    first, second = refusal.value.message.splitlines()
    assert first.startswith("-lcs is not supported: guesses come from the texts of requests")
    assert second.startswith("--tools or LLAMA_ARG_TOOLS is not supported: this server starts no tools")


def test_an_option_is_named_as_it_was_written() -> None:
    assert [name for name, _ in ignored_options(_context("--perf", "-dt", "0.1"))] == ["--perf", "-dt"]


def test_names_may_have_underscores() -> None:
    assert _settings("--ctx_size", "7", "--top_k=5", "--no_webui") == {
        "model_manager.n_ctx": 7,
        "model_manager.defaults": {"top_k": 5},
        "server.webui": False,
    }
    assert _settings("-r", "--a_b")["model_manager.defaults"] == {"stop": ["--a_b"]}


def test_a_dry_run_reports_every_option() -> None:
    line = "--dry-run -m x.gguf --temp 0.5 --api-key secret --perf --lookup-cache-static file -r a -r b"
    context = _context(*line.split())
    rows = [re.split(r"  +", row) for row in report(context).splitlines()]
    assert [(verdict, option) for verdict, option, _ in rows] == [
        ("honoured", "-m"),
        ("honoured", "--temp"),
        ("honoured", "--api-key"),
        ("honoured", "-r"),
        ("not needed", "--perf"),
        ("refused", "--lookup-cache-static"),
    ]
    assert rows[1][2] == "model_manager.defaults.temperature = 0.5"
    assert rows[3][2] == 'model_manager.defaults.stop = ["a", "b"]'
    assert "secret" not in report(context)


def test_a_variable_that_llama_server_does_not_have_is_noticed() -> None:
    environ = {"LLAMA_ARG_BATCH_SIZE": "5", "LLAMA_ARG_BATCH": "5", "LLAMA_ARG_NO_KV_OFFLOAD": "1", "LLAMA_CACHE": "x"}
    assert unknown_variables(environ) == {"LLAMA_ARG_BATCH_SIZE": ["LLAMA_ARG_BATCH"]}


@pytest.mark.parametrize("word", ["-cnv", "-ctx", "-nope", "-hfv", "-mli"])
def test_an_option_with_one_dash_is_a_whole_word(word: str) -> None:
    with pytest.raises(click.NoSuchOption, match=word):
        _context("-m", "x", word, "1")
    assert _settings("-r", word)["model_manager.defaults"] == {"stop": [word]}
    assert _settings("-fa", "-n", "-1")["model_manager.defaults"] == {"n_predict": -1}


def test_values_are_accepted_in_all_spellings() -> None:
    for words, value in (("on enabled true 1", "on"), ("off disabled false 0", "off"), ("auto", "auto")):
        for word in words.split():
            assert _settings("-fa", word) == {"model_manager.flash_attn": value}
    assert _settings("-fa", "--port", "1") == {"model_manager.flash_attn": "on", "server.port": 1}
    assert _settings("-np", "-1", "-t", "-1") == {}
    assert _settings("-lv", "1")["server.log_level"] == "ERROR"
    assert _settings("-lv", "9")["server.log_level"] == "DEBUG"
    assert _settings("--log-jsonl")["server.log_format"] == "json"
    assert _settings("--no-ui") == {"server.webui": False}


def test_context_shift_and_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"model_manager.context_shift": True, "model_manager.defaults": {"n_keep": -1}}
    assert _settings("--context-shift", "--keep", "-1") == both
    assert _settings("--no-context-shift") == {"model_manager.context_shift": False}
    monkeypatch.setenv("LLAMA_ARG_CONTEXT_SHIFT", "true")
    assert _settings() == {"model_manager.context_shift": True}


def test_the_last_of_several_flags_of_a_setting_wins() -> None:
    assert _settings("-v", "-lv", "2")["server.log_level"] == "WARNING"
    assert _settings("-lv", "2", "-v")["server.log_level"] == "DEBUG"
    assert _settings("--sleep-idle-seconds", "-1", "--idle-timeout", "5")["model_manager.idle_timeout"] == 5
    assert _settings("--idle-timeout", "5", "--sleep-idle-seconds", "-1")["model_manager.idle_timeout"] == 0


def test_variables_stand_for_flags_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    monkeypatch.setenv("LLAMA_ARG_NO_CONT_BATCHING", "1")
    monkeypatch.setenv("LLAMA_ARG_ENDPOINT_METRICS", "1")
    monkeypatch.setenv("LLAMA_ARG_UI", "off")
    assert _settings() == {
        "model_manager.n_ctx": 4096,
        "model_manager.cont_batching": False,
        "server.metrics": True,
        "server.webui": False,
    }
    assert _settings("-c", "512")["model_manager.n_ctx"] == 512


def test_a_repeated_flag_replaces_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    assert _settings() == {"server.host": "0.0.0.0"}
    assert _settings("--host", "127.0.0.1") == _settings("--host=127.0.0.1") == {"server.host": "127.0.0.1"}
    assert _settings("--host", "127.0.0.1", "--host", "::1") == {"server.host": "127.0.0.1,::1"}


def test_the_timeout_is_for_reading_and_writing() -> None:
    assert _settings("--timeout", "600") == {"server.write_timeout": 600, "server.body_timeout": 600}


def test_a_variable_is_refused_as_its_flag_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_TOOLS", "all")
    with pytest.raises(click.UsageError, match="--tools or LLAMA_ARG_TOOLS is not supported"):
        _context()
    monkeypatch.setenv("LLAMA_ARG_TOOLS", "")
    assert _settings() == {}


def test_a_variable_with_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_KV_UNIFIED", "perhaps")
    with pytest.raises(click.UsageError, match="LLAMA_ARG_KV_UNIFIED: expected on or off, got 'perhaps'"):
        _context()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_stands_for_its_arguments(preset: str) -> None:
    context = _context(preset, "--port", "9")
    assert context.params["hf_repo"].startswith("ggml-org/")
    assert given_settings(context.params)["server.port"] == 9


def test_flags_set_the_defaults_of_requests() -> None:
    line = "--temp 0.2 --top-k 3 --ignore-eos -r x -r y -l 3+1 -l 4-inf --reasoning off --reasoning-effort low -n 16"
    assert _settings(*line.split(), "--samplers", "top-k;temp", "--no-cache-prompt", "-j", "{}") == {
        "model_manager.defaults": {
            "temperature": 0.2,
            "top_k": 3,
            "ignore_eos": True,
            "stop": ["x", "y"],
            "logit_bias": [[3, 1.0], [4, False]],
            "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"},
            "n_predict": 16,
            "samplers": ["top_k", "temperature"],
            "cache_prompt": False,
            "json_schema": {},
        }
    }
    assert _settings("--samplers", "penalties", "--sampling-seq", "kt")["model_manager.defaults"] == {
        "samplers": ["top_k", "temperature"]
    }
    assert _settings("--dry-sequence-breaker", "none")["model_manager.defaults"] == {"dry_sequence_breakers": []}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--samplers", "top_z"], "unknown sampler 'top_z'"),
        (["-l", "hello+1"], "expected a token id"),
        (["--json-schema", "{"], "expected JSON"),
        (["--chat-template-kwargs", "[]"], "expected a JSON object"),
        (["--grammar-file", "/does/not/exist"], "cannot read /does/not/exist"),
        (["--reasoning", "perhaps"], "expected on, off or auto"),
        (["--temp", "warm"], "could not convert"),
    ],
)
def test_a_wrong_default_is_refused(arguments: list[str], problem: str) -> None:
    with pytest.raises(click.BadParameter, match=problem):
        _context(*arguments)


def test_a_grammar_or_a_schema_can_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "g").write_text('root ::= "a"', "utf-8")
    (tmp_path / "s").write_text('{"type": "object"}', "utf-8")
    assert _settings("--grammar-file", str(tmp_path / "g"))["model_manager.defaults"] == {"grammar": 'root ::= "a"'}
    assert _settings("-jf", str(tmp_path / "s"))["model_manager.defaults"] == {"json_schema": {"type": "object"}}


def test_a_chat_template_is_a_text_or_a_known_name() -> None:
    assert _settings("--chat-template", "llama3") == {"model_manager.chat_template": "llama3"}
    assert _settings("--chat-template", "{{ messages }}") == {"model_manager.chat_template": "{{ messages }}"}
    assert _settings("--jinja") == {"model_manager.jinja": True}
    assert _settings("--no-jinja") == {"model_manager.jinja": False}
    with pytest.raises(click.BadParameter, match=r"'llama5' is not .* names bailing, .* llama3, ") as refusal:
        _context("--chat-template", "llama5")
    assert refusal.value.exit_code == 2


def test_flags_without_an_argument_set_true_or_false() -> None:
    pairs = {
        "--prefill-assistant": ("prefill_assistant", True),
        "--no-prefill-assistant": ("prefill_assistant", False),
        "--skip-chat-parsing": ("skip_chat_parsing", True),
        "--no-skip-chat-parsing": ("skip_chat_parsing", False),
        "--reasoning-preserve": ("preserve_reasoning", True),
        "--no-reasoning-preserve": ("preserve_reasoning", False),
        "--special": ("skip_special_tokens", False),
        "--spm-infill": ("spm_infill", True),
        "--no-cache-prompt": ("cache_prompt", False),
        "--ignore-eos": ("ignore_eos", True),
    }
    for flag, (field, value) in pairs.items():
        assert _settings(flag) == {"model_manager.defaults": {field: value}}
    assert _settings("--no-prefill-assistant", "--prefill-assistant")["model_manager.defaults"] == {
        "prefill_assistant": True
    }


def test_a_variable_can_turn_a_default_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_PREFILL_ASSISTANT", "off")
    monkeypatch.setenv("LLAMA_ARG_SKIP_CHAT_PARSING", "1")
    assert _settings()["model_manager.defaults"] == {"prefill_assistant": False, "skip_chat_parsing": True}

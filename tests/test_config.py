from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import Settings, load_settings, load_with_sources
from paddock.config.effective import effective
from paddock.config.settings import known_keys
from paddock.errors import SettingsError

SEED_003 = {
    "server": {
        "host": "127.0.0.1",
        "port": 8080,
        "cors_origins": ["http://localhost:5000"],
        "log_level": "INFO",
    },
    "model_manager": {
        "models_directory": "/mnt/DataShare/Models/LLM",
        "idle_timeout": 300,
        "check_interval": 60,
        "n_ctx": 16384,
        "n_gpu_layers": -1,
        "n_threads": 8,
        "default_model": "Qwen3-8B-Q8_0.gguf",
    },
}


def write(folder: Path, content: Any) -> Path:
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def load(folder: Path, content: Any = None, **options: Any) -> Settings:
    file = None if content is None else write(folder, content)
    options.setdefault("environ", {})
    options.setdefault("dotenv", folder / ".env")
    return load_settings(file=file, **options)


def problem(folder: Path, content: Any = None, **options: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(folder, content, **options)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_file_of_the_seed_is_valid(tmp_path: Path) -> None:
    settings = load(tmp_path, SEED_003)
    assert settings.model_manager.models_directory == Path("/mnt/DataShare/Models/LLM")
    assert settings.model_manager.default_model == "Qwen3-8B-Q8_0.gguf"
    assert settings.model_manager.n_threads == 8


def test_the_defaults_are_those_of_the_seed(tmp_path: Path) -> None:
    settings = load(tmp_path).model_dump()
    for section, values in SEED_003.items():
        for key, value in values.items():
            # A path and a model of one machine cannot be anybody's default; eight threads only where there are eight.
            if key not in {"models_directory", "default_model", "n_threads"}:
                ours = settings[section][key]
                assert (ours[: len(value)] if isinstance(value, list) else ours) == value, key
    assert 1 <= settings["model_manager"]["n_threads"] <= 8


def test_flags_win_over_environment_over_dotenv_over_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PADDOCK_SERVER__PORT=3\nPADDOCK_MODEL_MANAGER__N_CTX=333\n")
    file = {"server": {"port": 1, "host": "h"}, "model_manager": {"n_ctx": 111}}
    environ = {"PADDOCK_SERVER__PORT": "4"}
    settings = load(tmp_path, file, environ=environ, flags={"server.port": 5})
    assert (settings.server.port, settings.server.host, settings.model_manager.n_ctx) == (5, "h", 333)
    assert load(tmp_path, file, environ=environ).server.port == 4
    assert load(tmp_path, file).server.port == 3


def test_lists_in_the_environment(tmp_path: Path) -> None:
    environ = {"PADDOCK_SERVER__CORS_ORIGINS": '["http://a", "http://b"]', "PADDOCK_SERVER__API_KEYS": "one"}
    server = load(tmp_path, environ=environ).server
    assert server.cors_origins == ["http://a", "http://b"]
    assert server.api_keys == ["one"]


def test_a_list_in_the_environment_is_split_at_commas_like_a_flag(tmp_path: Path) -> None:
    environ = {
        "PADDOCK_SERVER__API_KEYS": 'one,two,"th,ree"',
        "PADDOCK_SERVER__CORS_ORIGINS": "http://a,http://b",
        "PADDOCK_MODEL_MANAGER__LORA_SCALED": "/a.gguf:0.5,/b.gguf:2",
    }
    settings = load(tmp_path, environ=environ)
    assert settings.server.api_keys == ["one", "two", "th,ree"]
    assert settings.server.cors_origins == ["http://a", "http://b"]
    assert settings.model_manager.lora_scaled == [(Path("/a.gguf"), 0.5), (Path("/b.gguf"), 2.0)]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("server", "port", True),
        ("server", "port", "8080"),
        ("server", "port", 8080.5),
        ("server", "body_timeout", True),
        ("server", "body_timeout", "20"),
        ("server", "metrics", 1),
        ("server", "metrics", "true"),
        ("server", "max_body_bytes", "1000"),
        ("server", "host", 1),
        ("model_manager", "n_ctx", True),
        ("model_manager", "n_gpu_layers", "35"),
        ("model_manager", "memory_limit", True),
        ("model_manager", "lora_scaled", ["/a.gguf:much"]),
        ("model_manager", "lora_scaled", [["/a.gguf", True]]),
        ("model_manager", "models", {"m": {"n_ctx": "4096"}}),
        ("model_manager", "models", {"m": {"replicas": True}}),
        ("model_manager", "models", {"m": {"replicas": "2"}}),
        ("model_manager", "models", {"m": {"cluster": {"cpus": "2"}}}),
        ("server", "keys", {"anna": {"key": "a", "requests_per_minute": True}}),
        ("server", "keys", {"anna": {"key": "a", "weight": "2"}}),
        ("cluster", "gateways", True),
    ],
)
def test_a_value_in_the_file_has_the_type_of_its_setting(tmp_path: Path, section: str, key: str, value: Any) -> None:
    assert " in " in problem(tmp_path, {section: {key: value}})


def test_numbers_and_booleans_in_the_environment_are_parsed(tmp_path: Path) -> None:
    environ = {
        "PADDOCK_SERVER__PORT": " 9000 ",
        "PADDOCK_SERVER__METRICS": "Off",
        "PADDOCK_SERVER__BODY_TIMEOUT": "2.5",
        "PADDOCK_MODEL_MANAGER__PARALLEL": "4",
        "PADDOCK_MODEL_MANAGER__KV_UNIFIED": "1",
        "PADDOCK_MODEL_MANAGER__MEMORY_LIMIT": "1024",
        "PADDOCK_MODEL_MANAGER__GPU_MEMORY_LIMIT": "1GiB",
        "PADDOCK_MODEL_MANAGER__DEFAULT_MODEL": "7",
    }
    settings = load(tmp_path, environ=environ)
    manager = settings.model_manager
    assert (settings.server.port, settings.server.metrics, settings.server.body_timeout) == (9000, False, 2.5)
    assert (manager.parallel, manager.kv_unified, manager.memory_limit) == (4, True, 1024)
    assert (manager.gpu_memory_limit, manager.default_model) == (1024**3, "7")
    assert "server.port in the environment" in problem(tmp_path, environ={"PADDOCK_SERVER__PORT": "true"})


def test_a_text_that_is_not_unicode_is_an_error(tmp_path: Path) -> None:
    assert "not valid Unicode" in problem(tmp_path, environ={"PADDOCK_SERVER__HOST": "a\udcff"})
    assert "not valid Unicode" in problem(tmp_path, '{"server": {"host": "\\ud800"}}')


def test_every_value_is_shown_with_its_source_and_without_secrets(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PADDOCK_MODEL_MANAGER__N_CTX=333\n")
    file = write(
        tmp_path,
        {
            "server": {"host": "h", "keys": {"anna": {"key": "hunter2", "weight": 2}}},
            "model_manager": {"models": {"m": {"replicas": {"there": {"url": "http://x", "api_key": "hunter2"}}}}},
        },
    )
    environ = {"PADDOCK_SERVER__API_KEYS": "hunter2,hunter3"}
    loaded = load_with_sources(file=file, environ=environ, dotenv=tmp_path / ".env", flags={"server.port": 5})
    values = {value.key: value for value in effective(loaded)}

    def said(key: str) -> tuple[Any, dict[str, str]]:
        return values[key].value, values[key].source({"server.port": "--port"})

    assert said("server.metrics") == (True, {"source": "default"})
    assert said("server.host") == ("h", {"source": "file", "from": str(file)})
    assert said("server.port") == (5, {"source": "flag", "from": "--port"})
    assert said("server.keys.anna.weight") == (2, {"source": "file", "from": str(file)})
    assert said("server.api_keys") == (
        ["***", "***"],
        {"source": "environment", "from": "PADDOCK_SERVER__API_KEYS"},
    )
    assert said("model_manager.n_ctx")[1]["source"] == "dotenv"
    assert values["model_manager.models.m.replicas.there.url"].value == "http://x"
    assert "hunter" not in str(values)
    assert {value.setting for value in values.values()} >= set(known_keys()) - {"server.keys"}, "every setting is shown"


def test_the_environment_can_name_the_config_file(tmp_path: Path) -> None:
    file = write(tmp_path, {"server": {"port": 9}})
    assert load(tmp_path, environ={"PADDOCK_CONFIG": str(file)}).server.port == 9


def test_unknown_keys_are_errors_with_the_nearest_name(tmp_path: Path) -> None:
    assert "'server.prot'" in (said := problem(tmp_path, {"server": {"prot": 1}}))
    assert "did you mean 'server.port'?" in said
    assert "config.json" in said
    assert "did you mean 'model_manager'?" in problem(tmp_path, {"model_manger": {"n_ctx": 1}})
    environ = {"PADDOCK_SERVER__PROT": "1"}
    assert "did you mean 'PADDOCK_SERVER__PORT'?" in problem(tmp_path, environ=environ)


def test_settings_of_one_model_are_validated(tmp_path: Path) -> None:
    def said(**settings: Any) -> str:
        return problem(tmp_path, {"model_manager": {"models": {"A.Q4_1": settings}}})

    assert "unknown setting 'n_ctz' of the model 'A.Q4_1' in" in (unknown := said(n_ctz=1))
    assert unknown.endswith("did you mean 'n_ctx'?")
    assert "unknown setting 'draft_model' of the model 'A.Q4_1'" in said(draft_model="b")
    assert "n_ctx of the model 'A.Q4_1' in" in said(n_ctx=-1)
    assert "not one of the names bailing, " in said(chat_template="llama5")
    environ = {"PADDOCK_MODEL_MANAGER__MODELS": '{"a": {"n_ctx": 7}}'}
    assert load(tmp_path, environ=environ).model_manager.models["a"].n_ctx == 7
    assert "not a JSON object" in problem(tmp_path, environ={"PADDOCK_MODEL_MANAGER__MODELS": "{"})


def test_replicas_are_a_number_or_named(tmp_path: Path) -> None:
    def replicas(value: Any) -> Any:
        return (
            load(tmp_path, {"model_manager": {"models": {"m": {"replicas": value}}}}).model_manager.models["m"].replicas
        )

    assert list(replicas(2)) == ["0", "1"]
    found = replicas({"gpu0": {"devices": "0"}, "there": {"url": "http://10.0.0.2:8080/", "api_key": "secret"}})
    assert found["gpu0"].devices == "0"
    assert found["there"].url == "http://10.0.0.2:8080"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("replicas", "problem"),
    [
        (0, "replicas of the model 'm'"),
        ({"a": {"url": "10.0.0.2"}}, "url of the replica 'a' of the model 'm'"),
        ({"a": {"api_key": "secret"}}, "the replica 'a' of the model 'm' in .*: api_key is for another server"),
        ({"a": {"url": "http://x", "api_key": "secret", "devices": "0"}}, "devices is for a worker of this server"),
        ({"a": {"urll": "http://x", "api_key": "secret"}}, "unknown setting 'urll' of the replica 'a'.*'url'"),
        ({"a b": {}}, "a name has at most 64 letters"),
    ],
)
def test_errors_of_a_replica_do_not_show_its_key(tmp_path: Path, replicas: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as error:
        load(tmp_path, {"model_manager": {"models": {"m": {"replicas": replicas}}}})
    assert "secret" not in error.value.message


def test_a_template_in_the_environment_is_a_text(tmp_path: Path) -> None:
    environ = {"PADDOCK_MODEL_MANAGER__CHAT_TEMPLATE": "[INST] {{ messages[0].content }}"}
    assert load(tmp_path, environ=environ).model_manager.chat_template == "[INST] {{ messages[0].content }}"


def test_a_json_error_has_line_and_column(tmp_path: Path) -> None:
    assert "config.json, line 2, column 14" in problem(tmp_path, '{\n  "server": {]}\n}')


def test_other_broken_files(tmp_path: Path) -> None:
    assert "must hold a JSON object" in problem(tmp_path, "[]")
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings(file=tmp_path / "none.json", environ={}, dotenv=tmp_path / ".env")
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_settings(file=tmp_path / "config.json", environ={}, dotenv=tmp_path / ".env")


def test_invalid_values_name_key_source_and_value(tmp_path: Path) -> None:
    said = problem(tmp_path, {"server": {"port": 99999}})
    assert "server.port" in said
    assert "config.json" in said
    assert "99999" in said
    assert "the command line" in problem(tmp_path, flags={"model_manager.n_ctx": -1})
    assert "must be an object" in problem(tmp_path, {"server": 3}, flags={"server.port": 1})


def test_layers_are_a_number_or_auto(tmp_path: Path) -> None:
    for value, layers in [("auto", "auto"), ("35", 35), ("-1", -1)]:  # in the environment
        environ = {"PADDOCK_MODEL_MANAGER__N_GPU_LAYERS": value}
        assert load(tmp_path, environ=environ).model_manager.n_gpu_layers == layers
    wrong: tuple[Any, ...] = ("some", -2, 1.5, True, [], 10**12)
    for value in wrong:
        said = problem(tmp_path, {"model_manager": {"n_gpu_layers": value}})
        assert said.startswith("model_manager.n_gpu_layers in ")
        assert "; " not in said


def test_one_slot_without_continuous_batching_is_deterministic_by_default(tmp_path: Path) -> None:
    def is_deterministic(**manager: Any) -> bool:
        return load(tmp_path, {"model_manager": manager}).model_manager.settings_for("any").is_deterministic

    assert is_deterministic(parallel=1, cont_batching=False)
    assert not is_deterministic(parallel=1, cont_batching=False, deterministic=False)
    assert not is_deterministic(parallel=2, cont_batching=False)
    assert not is_deterministic(parallel=1)
    assert is_deterministic(deterministic=True)
    assert is_deterministic(models={"any": {"parallel": 1, "cont_batching": False}})


def test_an_error_never_shows_a_key(tmp_path: Path) -> None:
    assert "hunter2" not in problem(tmp_path, {"server": {"api_keys": {"hunter2": 1}}})
    for keys in (
        "hunter2",
        ["hunter2"],
        {"a": "hunter2"},
        {"a": {"key": "hunter2", "hash": "hunter2"}},
        {"a": {"key": "hunter2", "models": "hunter2"}},
        {"a": {"key": "hunter2", "models": [3], "weight": "hunter2"}},
        {"a b": {"key": "hunter2"}},
    ):
        assert "hunter2" not in problem(tmp_path, {"server": {"keys": keys}})
    assert "hunter2" not in repr(load(tmp_path, {"server": {"keys": {"a": {"key": "hunter2"}}}}))


def test_settings_of_one_key(tmp_path: Path) -> None:
    def said(**settings: Any) -> str:
        return problem(tmp_path, {"server": {"keys": {"anna": settings}}})

    assert said(key="a", modells=[]).startswith("unknown setting 'modells' of the key 'anna' in ")
    assert "weight of the key 'anna' in" in said(key="a", weight=0)
    assert "requests_per_minute of the key 'anna' in" in said(key="a", requests_per_minute=0)
    assert "priority of the key 'anna' in" in said(key="a", priority="high")
    assert "tenant of the key 'anna' in" in said(key="a", tenant="a/b")
    assert "expected sha256: and 64 hexadecimal digits" in said(hash="sha256:12")
    assert "set either key or hash" in said()
    assert "set either key or hash" in said(key="a", hash="sha256:" + "0" * 64)
    assert "an admin key may use every model" in said(key="a", admin=True, models=["x"])
    environ = {"PADDOCK_SERVER__KEYS": '{"anna": {"key": "a", "tenant": "acme"}}'}
    assert load(tmp_path, environ=environ).server.keys["anna"].tenant == "acme"


def test_repeated_keys_are_errors(tmp_path: Path) -> None:
    twice = '{"anna": {"key": "a"}, "anna": {"key": "b"}}'
    assert problem(tmp_path, '{"server": {"keys": ' + twice + "}}").endswith("has 'anna' twice in one object")
    said = problem(tmp_path, environ={"PADDOCK_SERVER__KEYS": twice})
    assert said == "PADDOCK_SERVER__KEYS has 'anna' twice in one object"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_section = st.dictionaries(st.sampled_from(sorted(Settings().server.model_dump())) | st.text(max_size=6), _json)


@given(content=st.dictionaries(st.sampled_from(["server", "model_manager", "x"]), _section | _json))
def test_any_json_gives_settings_or_one_error_line(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    try:
        load(folder, content)
    except SettingsError as error:
        assert error.message


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"url": "ftp://a/mcp"}, "url of the MCP server 'notes' in"),
        ({"url": "http://user:secret@a/mcp"}, "without user or password"),
        ({}, "url of the MCP server 'notes' in"),
        ({"url": "http://a/mcp", "headres": {}}, "unknown setting 'headres' of the MCP server 'notes'"),
        ({"url": "http://a/mcp", "headers": {"Host": "secret"}}, "headers of the MCP server 'notes' in"),
        ({"url": "http://a/mcp", "headers": {"a b": "secret"}}, "headers of the MCP server 'notes' in"),
        ({"url": "http://a/mcp", "headers": {"A": 5}}, "headers of the MCP server 'notes' in"),
        ({"url": "http://a/mcp", "timeout": 0}, "timeout of the MCP server 'notes' in"),
        ({"url": "http://a/mcp", "max_result_bytes": "many"}, "max_result_bytes of the MCP server 'notes' in"),
        ({"url": "http://a/mcp", "tools": "all"}, "tools of the MCP server 'notes' in"),
    ],
)
def test_wrong_settings_of_mcp_servers_are_named(tmp_path: Path, server: dict[str, Any], words: str) -> None:
    message = problem(tmp_path, {"server": {"mcp_servers": {"notes": server}}})
    assert words in message
    assert "secret" not in message


def test_mcp_servers_of_several_sources_are_merged(tmp_path: Path) -> None:
    file = {"server": {"mcp_servers": {"a": {"url": "http://a/"}, "b": {"url": "http://b/", "timeout": 5}}}}
    flags = {"server.mcp_servers": {"b": {"url": "http://c/"}}}
    found = load(tmp_path, file, flags=flags).server.mcp_servers
    assert {name: (server.url, server.timeout) for name, server in found.items()} == {
        "a": ("http://a/", 60),
        "b": ("http://c/", 60),
    }
    assert "begins with a letter or digit" in problem(tmp_path, flags={"server.mcp_servers": {"b c": {}}})


def test_a_key_names_only_mcp_servers_that_exist(tmp_path: Path) -> None:
    servers = {"notes": {"url": "http://a/mcp"}}
    keys: dict[str, Any] = {"anna": {"key": "secret", "mcp_servers": ["n*"]}}
    found = load(tmp_path, {"server": {"mcp_servers": servers, "keys": keys}}).server.keys["anna"]
    assert found.mcp_servers == ["n*"]
    keys["anna"]["mcp_servers"] = ["files"]
    message = problem(tmp_path, {"server": {"mcp_servers": servers, "keys": keys}})
    assert "the key 'anna' names the MCP server 'files'" in message
    assert "secret" not in message
    keys["anna"] |= {"admin": True, "mcp_servers": ["notes"]}
    assert "mutually exclusive" in problem(tmp_path, {"server": {"mcp_servers": servers, "keys": keys}})


def test_headers_of_mcp_servers_are_not_shown(tmp_path: Path) -> None:
    server = {"url": "http://a/mcp", "headers": {"Authorization": "Bearer secret"}}
    file = write(tmp_path, {"server": {"mcp_servers": {"notes": server}}})
    loaded = load_with_sources(file=file, environ={}, dotenv=tmp_path / ".env")
    shown = {value.key: value.value for value in effective(loaded)}
    assert shown["server.mcp_servers.notes.headers"] == {"Authorization": "***"}
    assert "secret" not in repr(loaded.settings)

"""Settings: defaults < file < environment (`.env`, then the real one) < flags. An unknown key is an error."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    model_validator,
)

from paddock.errors import SettingsError

ENV_PREFIX = "PADDOCK_"
ENV_NESTING = "__"
# Variables with our prefix that are not settings.
_ENV_OTHER = frozenset({"PADDOCK_CONFIG", "PADDOCK_LLAMA_SERVER", "PADDOCK_TEST_MODELS"})

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
Pooling = Literal["none", "mean", "cls", "last", "rank"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Expanded = Annotated[Path, AfterValidator(Path.expanduser)]
MOST_DRAFTED = 64
"""The most tokens that may be guessed ahead. A row of logits is computed for each."""
MOST_REPLICAS = 64
"""Workers of one model that a single number can ask for."""
LARGEST_SCALE = 100.0
"""Of an adapter, either way. Far beyond it numbers overflow, and not only those of the request that wants it."""


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _template(value: str) -> str:
    if "{" not in value:
        raise ValueError("the text of a template is wanted; the names of llama.cpp's own are not known here")
    return value


def checked_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", value):
        raise ValueError("a name has letters, digits and . _ @ - only, at most 64 of them")
    return value


def _hash(value: str) -> str:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
        raise ValueError("sha256: and 64 hexadecimal digits are expected, as `paddock keys new` writes them")
    return value


def _size(value: Any) -> Any:
    """A number of bytes, or a text such as 8GiB, 512M or 50% (of the machine's memory)."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[kmgt]?(?:i?b)?)\s*", value, re.IGNORECASE)
    if match is None:
        raise ValueError("a size is expected, such as 8GiB, 512M or 50%")
    number, unit = float(match[1]), match[2].lower()
    if unit == "%":
        return int(number / 100 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return int(number * 1024 ** " kmgt".index(unit[:1].replace("b", " ") or " "))


def _origin(value: str) -> str:
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]*/?", value, re.IGNORECASE):
        raise ValueError("an origin is expected, such as http://localhost:3000, without a path; or *")
    return value.rstrip("/")


Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
"""In bytes. As with memory in general, a G is 1024 M."""


def _layers(value: Any) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not re.fullmatch(r"-1|[0-9]{1,9}", str(value)):
        raise ValueError("a number of layers, -1 for all of them, or 'auto' is expected")
    return int(value)


GpuLayers = Annotated[int | Literal["auto"], PlainValidator(_layers)]
"""As one type, so that a mistake is told once."""


def _path_and_scale(value: Any) -> Any:
    path, _, scale = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not path:
        raise ValueError("a path, a colon and a scale are expected")
    return path, scale


ScaledPath = Annotated[
    tuple[Expanded, Annotated[float, Field(ge=-LARGEST_SCALE, le=LARGEST_SCALE)]], BeforeValidator(_path_and_scale)
]
"""Written as `PATH:SCALE`."""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


# Who says one of these of a model has said all of them.
_ALTERNATIVES = (frozenset({"chat_template", "chat_template_file"}), frozenset({"embedding", "reranking", "pooling"}))


class KeySettings(_Section):
    """One who may ask: by which key, for what, and how much."""

    key: str | None = Field(None, min_length=1, repr=False)
    hash: Annotated[str, AfterValidator(_hash)] | None = None
    """Instead of the key itself; `paddock keys new` makes both."""
    models: list[str] | None = None
    """Names, aliases or patterns (`llama-*`) of those that may be asked; unless given, all of them."""
    admin: bool = False
    tenant: Annotated[str, AfterValidator(checked_name)] | None = None
    """Prefixes are shared within a tenant only; those without one have the same."""
    share_prefixes: bool = True
    """Otherwise with nobody, not even within the tenant."""
    priority: Literal["interactive", "batch"] = "interactive"
    weight: float = Field(1.0, gt=0, le=1000)
    """How large the share is beside others'."""
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    """Of prompts and answers together."""
    concurrent_requests: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> KeySettings:
        if (self.key is None) == (self.hash is None):
            raise ValueError("either key or hash is needed")
        if self.admin and self.models is not None:
            raise ValueError("admin and models exclude each other: an admin key may ask every model")
        return self


class ServerSettings(_Section):
    """How the server is reached and what it says."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    cors_origins: list[Annotated[str, AfterValidator(_origin)]] = ["http://localhost:5000"]
    """Web pages that may ask, as `http://host:port`; `*`: all of them."""
    allowed_hosts: list[str] = []
    """Names by which it may be asked, besides addresses and names without a dot; `*`: any. Unless given, it may be
    asked by any name where others than this machine can reach it."""
    log_level: Annotated[LogLevel, BeforeValidator(_upper)] = "INFO"
    log_format: Literal["text", "json"] = "text"
    log_disable: bool = False
    log_prompts: bool = False
    """Whether the log has the bodies of requests, prompts and all."""
    api_keys: list[str] = []
    api_key_file: Expanded | None = None
    """These and those of `api_keys` are admin keys without limits."""
    keys: dict[Annotated[str, AfterValidator(checked_name)], KeySettings] = {}
    """By name, those who may ask."""
    metrics_key: bool = False
    """Whether `/metrics` needs a key, where there are any."""
    ssl_key_file: Expanded | None = None
    ssl_cert_file: Expanded | None = None
    max_body_bytes: int = Field(32 * 1024 * 1024, gt=0)
    max_header_bytes: int = Field(64 * 1024, ge=1024)
    max_header_count: int = Field(100, ge=16)
    max_url_bytes: int = Field(8 * 1024, ge=256)
    max_connections: int = Field(4096, gt=0)
    """Open at once. When there are as many, those without a request under way make room, the longest quiet first."""
    header_timeout: float = Field(20, gt=0)
    """Seconds for the head of a request, and for its first byte on a new connection."""
    body_timeout: float = Field(20, gt=0)
    """Seconds for a body; each 500 bytes that have come give one more."""
    write_timeout: float = Field(60, gt=0)
    """Seconds for which a client may leave unread what would be sent to it."""
    keep_alive_timeout: int = Field(75, gt=0)
    """Seconds between two requests on one connection."""
    metrics: bool = True
    """Whether `/metrics` says what is counted."""
    slots: bool = True
    """Whether `/slots` shows what is running."""
    slot_save_path: Expanded | None = None
    """The folder of the files that slots are saved to and restored from."""
    props: bool = False
    """Whether `POST /props` is allowed."""
    webui: bool = True
    """Whether there is a web page, and what it is fed by."""
    shutdown_grace: float = Field(10.0, ge=0)


class ModelSettings(_Section):
    """How a model is opened and how long it stays: said for all models, and again for those that differ."""

    idle_timeout: float = Field(300, ge=0)
    load_timeout: float = Field(600, gt=0)
    silence_timeout: float = Field(30, gt=0)
    """Seconds without a sign of life from a worker that has something to do, after which it is ended."""
    hang_timeout: float = Field(600, gt=0)
    """The same for a worker that lives but does not finish a step."""
    n_ctx: int = Field(16384, ge=0)
    n_batch: int = Field(2048, ge=1)
    n_ubatch: int = Field(512, ge=1)
    n_gpu_layers: GpuLayers = -1
    """-1: all of them; auto: as many as fit the GPU's free memory when the model is loaded."""
    n_threads: int = Field(default_factory=lambda: min(8, _cores()), ge=1)
    flash_attn: Literal["on", "off", "auto"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    parallel: int | None = Field(None, ge=1, le=255)
    """Requests that run at once; chosen from the machine unless given."""
    kv_unified: bool | None = None
    """One pool of cells for all requests, or an equal part for each; chosen by `parallel` unless given."""
    cont_batching: bool = True
    cache_ram: int | None = Field(None, ge=-1)
    """MiB of memory for prefixes that nobody runs on; -1: no limit; chosen from the machine unless given."""
    max_queue: int = Field(1024, ge=0)
    embedding: bool = False
    """Make vectors of texts, also with models that could generate."""
    reranking: bool = False
    """Judge how well documents answer a query."""
    pooling: Pooling | None = None
    """How vectors are pooled; as the model's file says unless given."""
    lora: list[Expanded] = []
    """Files of adapters that are loaded with the model; they are numbered from 0 on."""
    lora_scaled: list[ScaledPath] = []
    """More of them, each with a scale other than 1."""
    lora_init_without_apply: bool = False
    """None of them acts before somebody says so."""
    model_draft: Expanded | None = None
    """The file of a small model with the same vocabulary, which guesses what the large one will say. What is not
    absolute is meant from the models directory, where there is one.
    """
    n_gpu_layers_draft: int = Field(-1, ge=-1)
    """-1: all of them."""
    draft_max: int = Field(4, ge=0, le=MOST_DRAFTED)
    """The most tokens that it guesses ahead at once."""
    draft_min: int = Field(0, ge=0, le=MOST_DRAFTED)
    """Fewer are not worth checking."""
    draft_p_min: float = Field(0.75, ge=0, le=1)
    """It stops before a token that it thinks less likely than this."""
    deterministic: bool = False
    chat_template: Annotated[str, AfterValidator(_template)] | None = None
    """The text of a template, in place of the model's own."""
    chat_template_file: Expanded | None = None

    @property
    def adapters(self) -> list[tuple[Path, float]]:
        """In the order of their numbers, each with the scale it has at first."""
        given = [*((path, 1.0) for path in self.lora), *self.lora_scaled]
        return [(path, 0.0 if self.lora_init_without_apply else scale) for path, scale in given]


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", value):
        raise ValueError("the address of a server is expected, such as http://10.0.0.2:8080")
    return value.rstrip("/")


class ReplicaSettings(_Section):
    """One of those that serve a model: a worker of this server's own or, with a `url`, a server elsewhere."""

    devices: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_,-]+$")] | None = None
    """The GPUs that its worker sees, by number or name, as in CUDA_VISIBLE_DEVICES."""
    n_threads: int | None = Field(None, ge=1)
    n_gpu_layers: int | None = Field(None, ge=-1)
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Of a llama-server, a Paddock, or whatever else answers as they do."""
    api_key: str | None = Field(None, min_length=1, repr=False)
    model: str | None = None
    """What the model is called there; unless given, as here."""
    engine_version: str | None = None
    """What it runs, where it does not say so itself."""

    @model_validator(mode="after")
    def _consistent(self) -> ReplicaSettings:
        here, there = {"devices", "n_threads", "n_gpu_layers"}, {"api_key", "model", "engine_version"}
        wrong = (here if self.url is not None else there) & self.model_fields_set
        if wrong:
            only = "a worker of our own" if self.url is not None else "a server elsewhere, which needs a url"
            raise ValueError(f"{min(wrong)} is for {only}")
        return self


def _replicas(value: Any) -> Any:
    """A number of workers that are all alike is as good as their names."""
    if type(value) is int or (isinstance(value, str) and value.isdecimal()):
        if not 1 <= int(value) <= MOST_REPLICAS:
            raise ValueError(f"from 1 to {MOST_REPLICAS} replicas can be had by their number")
        return {str(number): {} for number in range(int(value))}
    return value


class NamedModel(ModelSettings):
    """What is said of one model. What is not said is as for all of them."""

    path: Expanded | None = None
    """Its file; unless given, the one of that name below the models directory."""
    aliases: list[str] = []
    pinned: bool = False
    """It stays loaded, however long it is idle."""
    preload: bool = False
    """It is loaded when the server starts."""
    replicas: Annotated[
        dict[Annotated[str, AfterValidator(checked_name)], ReplicaSettings], BeforeValidator(_replicas)
    ] = {}
    """By name, those that serve it together: a pool. A number is short for so many workers of our own."""


class ModelManagerSettings(ModelSettings):
    """Which models there are, and how each is opened."""

    models_directory: Expanded | None = None
    model: Expanded | None = None
    alias: list[str] = []
    default_model: str | None = None
    check_interval: float = Field(60, gt=0)
    """Seconds between two looks at whether a model has been idle for too long, at most."""
    memory_limit: Size | None = None
    """The most host memory that all models together may take."""
    gpu_memory_limit: Size | None = None
    check_memory: bool = True
    """Whether a model must fit into the memory that is really free."""
    models_max: int = Field(0, ge=0)
    """How many models may be loaded at once; 0: as many as fit."""
    min_residence: float = Field(5, ge=0)
    """Seconds that a model in use stays loaded, whoever waits for its place."""
    spare_worker: bool = True
    """Keep a process ready for the next load, while a model is not loaded: forty megabytes that save 0.4 s."""
    wait_timeout: float = Field(600, gt=0)
    """Seconds that a request waits for its model to be loaded."""
    models: dict[str, NamedModel] = {}
    """By name, those of which more is to be said than that there is a file."""

    def settings_for(self, name: str) -> NamedModel:
        """What holds for one model: what is said of it (`.gguf` optional), and for the rest what is said for all."""
        own = self.models.get(name) or self.models.get(f"{name}.gguf") or NamedModel()
        given = {key: getattr(own, key) for key in own.model_fields_set}
        general = {key: getattr(self, key) for key in ModelSettings.model_fields}
        for alternatives in _ALTERNATIVES:
            if alternatives & given.keys():
                general = {key: value for key, value in general.items() if key not in alternatives}
        return NamedModel.model_construct(**general | given)  # each value has been validated where it stands


class Settings(_Section):
    """The whole configuration file; each section is one JSON object of it."""

    server: ServerSettings = ServerSettings()
    model_manager: ModelManagerSettings = ModelManagerSettings()


def load_settings(
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv: Path = Path(".env"),
) -> Settings:
    """Merge every source and validate once. `flags` maps dotted keys (`server.port`) to values.

    Raises `SettingsError`, in one line that names the key and where it was set.
    """
    environ = os.environ if environ is None else environ
    env_file = {key: value for key, value in dotenv_values(dotenv).items() if value is not None}
    file = file or _path(environ.get("PADDOCK_CONFIG") or env_file.get("PADDOCK_CONFIG"))
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for where, source in (
        (str(file), _flatten(_read_json(file)) if file else {}),
        (str(dotenv), _from_environment(env_file)),
        ("the environment", _from_environment(environ)),
        ("the command line", dict(flags or {})),
    ):
        for key, value in source.items():
            _put(merged, key, value, where)
            origin[key] = where
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(problem, origin) for problem in error.errors())) from None


def nearest(name: str, known: Iterator[str] | list[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known name is near."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"), object_pairs_hook=_without_repetition)
    except FileNotFoundError:
        raise SettingsError(f"the configuration file {file} does not exist") from None
    except OSError as error:
        raise SettingsError(f"cannot read the configuration file {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file} is not UTF-8 text: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise SettingsError(f"{file}, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except _Repeated as error:
        raise SettingsError(f"{file} has {error.args[0]!r} twice in one object") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content


class _Repeated(Exception):
    pass


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object as JSON has it; of two values under one name Python would drop the first in silence."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in names if names.count(name) > 1))
    return content


def _flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects → dotted keys, one level deep: what a section holds is one value."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if prefix == "" and isinstance(value, dict) and value:
            flat.update(_flatten(value, f"{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """`PADDOCK_SERVER__PORT=9000` → `server.port`. Lists (of more than one) and objects are written as JSON."""
    found: dict[str, Any] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX) or name in _ENV_OTHER:
            continue
        key = name.removeprefix(ENV_PREFIX).lower().replace(ENV_NESTING, ".")
        if key not in _known_keys():
            variables = [ENV_PREFIX + known.upper().replace(".", ENV_NESTING) for known in _known_keys()]
            raise SettingsError(f"unknown setting {name} in the environment{nearest(name, variables)}")
        kind = _container(key)
        if kind is None:
            found[key] = value
        elif kind == "list" and not value.lstrip().startswith("["):
            found[key] = [value]
        else:
            try:
                found[key] = json.loads(value, object_pairs_hook=_without_repetition)
            except json.JSONDecodeError as error:
                raise SettingsError(f"{name} is not a JSON {kind}: {error.msg}, column {error.colno}") from None
            except _Repeated as error:
                raise SettingsError(f"{name} has {error.args[0]!r} twice in one object") from None
    return found


def _put(merged: dict[str, Any], key: str, value: Any, where: str) -> None:
    section, _, name = key.partition(".")
    if not name:
        merged[section] = value
        return
    into = merged.setdefault(section, {})
    if not isinstance(into, dict):
        raise SettingsError(f"{section!r} must be an object, but {where} sets {key!r} in it")
    into[name] = value


def _path(value: str | None) -> Path | None:
    return Path(value).expanduser() if value else None


# ── what there is, and what went wrong ───────────────────────────────────────────────────────────────────────────────


def _known_keys() -> list[str]:
    return [
        f"{section}.{name}"
        for section, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        for name in field.annotation.model_fields
    ]


def _container(key: str) -> Literal["list", "object"] | None:
    section, _, name = key.partition(".")
    annotation = Settings.model_fields[section].annotation
    assert annotation is not None, "every section is annotated"
    origin = get_origin(annotation.model_fields[name].annotation)
    return "list" if origin is list else "object" if origin is dict else None


_NAMED: dict[tuple[str, ...], tuple[str, type[_Section]]] = {
    ("model_manager", "models"): ("model", NamedModel),
    ("server", "keys"): ("key", KeySettings),
}


def _explain(problem: Any, origin: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    where = origin.get(key) or origin.get(".".join(key.split(".")[:2])) or origin.get(key.split(".")[0])
    if where is None:
        where = next((at for known, at in origin.items() if known.startswith(f"{key}.")), "the settings")
    replica = problem["loc"][:2] == ("model_manager", "models") and problem["loc"][3:4] == ("replicas",)
    secret = problem["loc"][:2] == ("server", "keys") or "api_key" in key or replica
    named = _NAMED.get(problem["loc"][:2])
    if replica and len(problem["loc"]) > 4:
        owner = f"the replica {problem['loc'][4]!r} of the model {problem['loc'][2]!r}"
        name = str(problem["loc"][5]) if len(problem["loc"]) > 5 else ""
        key = f"{name} of {owner}" if name in ReplicaSettings.model_fields else owner
        if problem["type"] == "extra_forbidden":
            return f"unknown setting {name!r} of {owner} in {where}{nearest(name, list(ReplicaSettings.model_fields))}"
    elif named is not None and len(problem["loc"]) in (3, 4):
        what, schema = named
        owner, name = f"the {what} {problem['loc'][2]!r}", str(problem["loc"][-1])
        key = f"{name} of {owner}" if len(problem["loc"]) == 4 and name in schema.model_fields else owner
        if problem["type"] == "extra_forbidden":
            return f"unknown setting {name!r} of {owner} in {where}{nearest(name, list(schema.model_fields))}"
    elif problem["type"] == "extra_forbidden":
        known = _known_keys() if "." in key else list(Settings.model_fields)
        return f"unknown setting {key!r} in {where}{nearest(key, known)}"
    got = "" if secret else f" (got {problem['input']!r})"
    return f"{key} in {where}: {problem['msg'].removeprefix('Value error, ')}{got}"

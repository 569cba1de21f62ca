"""The types of settings, and how they are parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from paddock.config.media_hosts import HostRule
from paddock.config.tensor_patterns import compiled
from paddock.hosts import is_socket_path

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Expanded = Annotated[Path, AfterValidator(Path.expanduser)]
MOST_DRAFTED = 64
"""The most draft tokens. The model computes a row of logits for each."""
MOST_GUESSED = 1024
"""The largest number of guessed tokens that llama-server accepts."""
MOST_LAYERS = 1024
"""The most layers of a model."""
MOST_CPUS = 512
"""The most CPUs that ggml knows."""
MOST_REPLICAS = 64
"""The most workers that `replicas` as a number can start for one model."""
DEFAULT_MODEL = "default"
"""In `preload`: the model of `default_model`."""
LARGEST_SCALE = 100.0
"""The largest scale of an adapter, positive or negative. Much larger ones overflow and disturb other requests."""


def none_if_empty(value: object) -> object:
    """An empty value of a variable or flag unsets it."""
    return None if value == "" else value


def upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def checked_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", value):
        raise ValueError("a name has at most 64 letters, digits and . _ @ -, and begins with a letter or digit")
    return value


def hash_of_key(value: str) -> str:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
        raise ValueError("expected sha256: and 64 hexadecimal digits, as `paddock keys new` prints them")
    return value


def size(value: Any) -> Any:
    """A number of bytes, or a text such as 8GiB, 512M or 50% (of the machine's memory)."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[kmgt]?(?:i?b)?)\s*", value, re.IGNORECASE)
    if match is None:
        raise ValueError("expected a size, such as 8GiB, 512M or 50%")
    number, unit = float(match[1]), match[2].lower()
    if unit == "%":
        return int(number / 100 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return int(number * 1024 ** " kmgt".index(unit[:1].replace("b", " ") or " "))


def list_of_hosts(value: str) -> str:
    """Addresses and paths of sockets, separated by commas, without repetitions. A path is made absolute."""
    found = [host.strip() for host in value.split(",")]
    if not all(found):
        raise ValueError("expected an address, or several separated by commas")
    paths = [str(Path(host).expanduser().absolute()) if is_socket_path(host) else host for host in found]
    return ",".join(dict.fromkeys(paths))


def media_host(value: str) -> str:
    HostRule.parse(value)
    return value.strip()


def file_mode(value: str) -> str:
    if not re.fullmatch("[0-7]{3}", value):
        raise ValueError("expected three octal digits, such as 660")
    return value


def path_prefix(value: str) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?", value):
        raise ValueError("expected a path, such as /llm, of letters, digits and . _ ~ -")
    return value.rstrip("/")


def http_token(value: str) -> str:
    """The name of a method or of a header, or `*`."""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", value.strip()):
        raise ValueError("expected the name of a method or of a header, or *")
    return value.strip()


ANY_LOCAL_ORIGIN = "localhost"
"""In `cors_origins`: every port of this machine."""


def origin(value: str) -> str:
    value = value.strip()
    if value == ANY_LOCAL_ORIGIN:
        return value
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]*/?", value, re.IGNORECASE):
        raise ValueError("expected an origin without a path, such as http://localhost:3000, localhost or *")
    return value.rstrip("/")


def trimmed(values: list[str]) -> list[str]:
    """Names without spaces around them, each once. Empty ones are dropped, as in llama-server."""
    return list(dict.fromkeys(name for value in values if (name := value.strip())))


Names = Annotated[list[str], AfterValidator(trimmed)]

Size = Annotated[int, BeforeValidator(size), Field(gt=0)]
"""In bytes. 1 G is 1024 M."""


def folder_and_size(text: str) -> tuple[Path, int | None]:
    """Parse `DIR[:SIZE]`. A colon that no size follows is a part of the folder."""
    path, _, last = text.rpartition(":")
    match = re.fullmatch(r"\d+(\.\d+)?[kmgt]?(i?b)?", last, re.IGNORECASE) if path else None
    return (Path(path), size(last)) if match is not None else (Path(text), None)


def off_or_text(value: Any) -> Any:
    """false, `off` and an empty text mean none."""
    return None if value is False or value in ("", "off") else value


def sized_folder(text: str) -> str:
    folder, limit = folder_and_size(text)
    if limit == 0:
        raise ValueError("expected DIR or DIR:SIZE, such as /var/cache/paddock:20G, and a size above 0")
    expanded = folder.expanduser()
    return str(expanded) if limit is None else f"{expanded}:{text.rpartition(':')[2]}"


SizedFolder = Annotated[str, AfterValidator(sized_folder)]
"""As text: `DIR[:SIZE]`."""


def layers(value: Any) -> int | Literal["auto", "all"]:
    if value in ("auto", "all"):
        return "auto" if value == "auto" else "all"
    if type(value) is not int or not -1 <= value < 10**9:
        raise ValueError("expected a number of layers, 'all' (-1), or 'auto'")
    return value


def layers_from_text(text: str) -> int | str:
    """The value of `-ngl`. Any negative number means every layer."""
    if text in ("auto", "all"):
        return text
    try:
        return max(int(text), -1)
    except ValueError:
        raise ValueError("expected a number of layers, 'all' or 'auto'") from None


_SPECULATION = {
    "none": "none",
    "ngram": "ngram",
    "draft": "draft",
    "auto": "auto",
    "draft-simple": "draft",
    "ngram-simple": "ngram",
    "ngram-map-k": "ngram",
    "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram",
    "ngram-cache": "ngram",
}
_DRAFT_HEADS = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")


def speculation_type(value: Any) -> Any:
    """`none`, `ngram`, `draft` or `auto`, or names that llama-server knows, separated by commas."""
    if not isinstance(value, str):
        return value
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name in _DRAFT_HEADS:
            raise ValueError(f"{name} is not supported: this server has no draft heads, only draft models (draft)")
        if name not in _SPECULATION:
            raise ValueError(
                f"expected none, ngram, draft or auto, or names of llama-server such as ngram-mod, not {name}"
            )
    found = {_SPECULATION[name] for name in names}
    if "none" in found or len(found) == 1:
        return "none" if "none" in found else found.pop()
    return "auto"


def number_or_default(text: str) -> int | None:
    """llama-server takes a negative number (threads, slots) for its default."""
    try:
        return int(text) if int(text) > 0 else None
    except ValueError:
        raise ValueError("expected a number, or -1 for the default") from None


def on_off_or_auto(text: str) -> str:
    """llama-server's words for on, off and auto."""
    words = {"on": "on enabled true 1", "off": "off disabled false 0", "auto": "auto -1"}
    for value, spellings in words.items():
        if text in spellings.split():
            return value
    raise ValueError("expected on, off or auto")


def on_or_off(text: str) -> bool:
    value = on_off_or_auto(text) if text not in ("auto", "-1") else ""
    if not value:
        raise ValueError("expected on or off")
    return value == "on"


def level_of_verbosity(text: str) -> str:
    """llama-server's verbosity, 0 to 5, as a log level."""
    levels = ["ERROR", "ERROR", "WARNING", "INFO", "DEBUG"]
    try:
        return levels[min(max(int(text), 0), len(levels) - 1)]
    except ValueError:
        raise ValueError("expected a number from 0 (errors only) to 5 (everything)") from None


def idle_seconds(text: str) -> float:
    """The value of `--sleep-idle-seconds`: -1 means never, which is 0 here."""
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError("expected a number of seconds, or -1 for never") from None
    return 0 if seconds == -1 else seconds


GpuLayers = Annotated[int | Literal["auto", "all"], PlainValidator(layers)]
"""One type with one validator, so that a wrong value gives one error."""


def tensor_override(value: Any) -> Any:
    if isinstance(value, str):
        pattern, equals, buffer = value.rpartition("=")
        if not equals or not pattern or not buffer:
            raise ValueError("expected PATTERN=BUFFER, such as exps=CPU")
        value = pattern, buffer
    try:
        compiled(value[0])
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{value[0]!r} is not a regular expression: {error}") from None
    return value


TensorOverride = Annotated[tuple[str, str], BeforeValidator(tensor_override)]
"""As text: `PATTERN=BUFFER`."""

_METADATA_TYPES: dict[str, Callable[[str], int | float | bool | str]] = {
    "int": int,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text],
    "str": str,
}
_LONGEST_METADATA = 127


def metadata_override(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([^=]+)=(int|float|bool|str):(.*)", value, re.DOTALL)
    if match is None:
        raise ValueError("expected KEY=TYPE:VALUE, where TYPE is int, float, bool or str")
    key, kind, text = match.groups()
    if max(len(key.encode()), len(text.encode())) > _LONGEST_METADATA:
        raise ValueError(f"a key or a value has at most {_LONGEST_METADATA} bytes")
    try:
        return key, _METADATA_TYPES[kind](text)
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is not of the type {kind}") from None


MetadataOverride = Annotated[tuple[str, bool | int | float | str], BeforeValidator(metadata_override)]
"""As text: `KEY=TYPE:VALUE`."""


def rpc_server(value: str) -> str:
    if not re.fullmatch(r"[^\s:/]+:[0-9]{1,5}", value):
        raise ValueError("expected HOST:PORT, such as 10.0.0.2:50052")
    return value


RpcServer = Annotated[str, AfterValidator(rpc_server)]


def share(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None


def at_slashes(value: Any) -> Any:
    """llama-server separates shares by commas or slashes."""
    if not isinstance(value, list):
        return value
    return [part for item in value for part in (item.split("/") if isinstance(item, str) else [item])]


Share = Annotated[float, BeforeValidator(share), Field(ge=0, allow_inf_nan=False)]


def path_and_scale(value: Any) -> Any:
    if isinstance(value, tuple | list) and len(value) == 2:
        return value  # already parsed
    path, _, scale = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not path:
        raise ValueError("expected PATH:SCALE, a path, a colon and a scale")
    try:
        return path, float(scale)
    except ValueError:
        raise ValueError(f"expected PATH:SCALE, but {scale!r} is not a number") from None


ScaledPath = Annotated[
    tuple[Expanded, Annotated[float, Field(ge=-LARGEST_SCALE, le=LARGEST_SCALE)]], BeforeValidator(path_and_scale)
]
"""As text: `PATH:SCALE`."""


def cpus_of_mask(text: str) -> set[int]:
    """The numbers of the CPUs in a hexadecimal mask; `0x` in front of it is optional."""
    digits = text.removeprefix("0x")
    if not re.fullmatch(r"[0-9A-Fa-f]+", digits):
        raise ValueError("expected a hexadecimal mask, such as f0 for the CPUs 4 to 7")
    mask = int(digits, 16)
    return _some_cpus({cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1})


def cpus_of_range(text: str) -> set[int]:
    """The numbers of the CPUs from FIRST to LAST. As in llama-server both have a default."""
    match = re.fullmatch(r"(\d*)-(\d*)", text)
    if match is None:
        raise ValueError("expected a range of CPUs, such as 4-7")
    return _some_cpus(set(range(int(match[1] or 0), int(match[2] or MOST_CPUS - 1) + 1)))


def _some_cpus(cpus: set[int]) -> set[int]:
    if not cpus:
        raise ValueError("it has no CPU")
    if max(cpus) >= MOST_CPUS:
        raise ValueError(f"the numbers of CPUs are less than {MOST_CPUS}")
    return cpus


def one_or_zero(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


class Flag:
    """The flags of `paddock serve` that set a field, as metadata of the field's type.

    `-on/-off` names a pair of flags, ` /-off` one that only switches off. `metavar` names the argument in the help.
    `value` makes a flag without an argument that stands for this value. `bare` is the value of a flag whose argument
    is left out. `convert` reads the argument (None: the default of the field); without it the field's type says how to
    read it. For an object it returns the name and the value of one entry, and the flag is repeatable. With `joins`, the
    arguments of a repeated flag are joined by commas.
    """

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        value: str | None = None,
        bare: str | None = None,
        convert: Callable[[str], Any] | None = None,
        joins: bool = False,
    ) -> None:
        self.names, self.metavar, self.value, self.bare, self.convert = names, metavar, value, bare, convert
        self.joins = joins


class Section(BaseModel):
    """A part of the configuration. The text below a field is its description in the reference and in `--help`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)

"""What the value of a setting may be, and how it is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Expanded = Annotated[Path, AfterValidator(Path.expanduser)]
MOST_DRAFTED = 64
"""The most tokens that may be guessed ahead. A row of logits is computed for each."""
MOST_REPLICAS = 64
"""Workers of one model that a single number can ask for."""
LARGEST_SCALE = 100.0
"""Of an adapter, either way. Far beyond it numbers overflow, and not only those of the request that wants it."""


def upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def template(value: str) -> str:
    if "{" not in value:
        raise ValueError("the text of a template is wanted; the names of llama.cpp's own are not known here")
    return value


def checked_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", value):
        raise ValueError("a name has letters, digits and . _ @ - only, at most 64 of them")
    return value


def hash_of_key(value: str) -> str:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
        raise ValueError("sha256: and 64 hexadecimal digits are expected, as `paddock keys new` writes them")
    return value


def size(value: Any) -> Any:
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


def origin(value: str) -> str:
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]*/?", value, re.IGNORECASE):
        raise ValueError("an origin is expected, such as http://localhost:3000, without a path; or *")
    return value.rstrip("/")


Size = Annotated[int, BeforeValidator(size), Field(gt=0)]
"""In bytes. As with memory in general, a G is 1024 M."""


def layers(value: Any) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if type(value) is not int or not -1 <= value < 10**9:
        raise ValueError("a number of layers, -1 for all of them, or 'auto' is expected")
    return value


def layers_from_text(text: str) -> int | str:
    """The value of `-ngl`. As in llama-server `all` means every layer, and so does any negative number."""
    if text in ("auto", "all"):
        return text if text == "auto" else -1
    try:
        return max(int(text), -1)
    except ValueError:
        raise ValueError("expected a number of layers, 'all' or 'auto'") from None


GpuLayers = Annotated[int | Literal["auto"], PlainValidator(layers)]
"""As one type, so that a mistake is told once."""


def path_and_scale(value: Any) -> Any:
    if isinstance(value, tuple | list) and len(value) == 2:
        return value  # as it is once it has been read
    path, _, scale = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not path:
        raise ValueError("a path, a colon and a scale are expected")
    try:
        return path, float(scale)
    except ValueError:
        raise ValueError(f"a path, a colon and a scale are expected; {scale!r} is no number") from None


ScaledPath = Annotated[
    tuple[Expanded, Annotated[float, Field(ge=-LARGEST_SCALE, le=LARGEST_SCALE)]], BeforeValidator(path_and_scale)
]
"""Written as `PATH:SCALE`."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Flag:
    """The flags of `paddock serve` that set a field, as metadata of the field's type.

    `-on/-off` names a pair of flags. `metavar` names the argument in the help. `value` makes a flag without an argument
    that stands for this value. `bare` is the value of a flag whose argument is left out. `convert` reads the argument;
    by default the field's type says how to read it.
    """

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        value: str | None = None,
        bare: str | None = None,
        convert: Callable[[str], int | str] | None = None,
    ) -> None:
        self.names, self.metavar, self.value, self.bare, self.convert = names, metavar, value, bare, convert


class Section(BaseModel):
    """A part of the configuration. The text below a field is its description in the reference and in `--help`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)

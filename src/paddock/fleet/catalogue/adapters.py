"""LoRA adapters: their files, and which of them apply to a request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddock.errors import InvalidRequest
from paddock.fleet.catalogue.gguf import BrokenGGUF, Header
from paddock.fleet.catalogue.headers import read_header
from paddock.types import Adapters, ModelInfo

_INVOCATION = "adapter.alora.invocation_tokens"


@dataclass(frozen=True, slots=True)
class Adapter:
    path: str
    scale: float
    """The default scale."""
    task_name: str = ""
    prompt_prefix: str = ""


def read_adapter(path: Path, scale: float, *, architecture: str | None) -> Adapter:
    """Read an adapter's header. Raises `BrokenGGUF`, naming the file, if it does not fit the architecture."""
    try:
        header = read_header(path)
        _check(header, architecture)
    except BrokenGGUF as error:
        raise BrokenGGUF(f"cannot use the adapter {path}: {error}") from None
    except OSError as error:
        raise BrokenGGUF(f"cannot read the adapter {path}: {error.strerror}") from None
    metadata = header.metadata
    return Adapter(
        str(path),
        scale,
        task_name=_text(metadata.get("adapter.lora.task_name")),
        prompt_prefix=_text(metadata.get("adapter.lora.prompt_prefix")),
    )


def _check(header: Header, architecture: str | None) -> None:
    metadata = header.metadata
    if metadata.get("general.type") != "adapter":
        raise BrokenGGUF(f"its general.type is {metadata.get('general.type')!r}, not 'adapter'")
    if metadata.get("adapter.type") != "lora":
        raise BrokenGGUF(f"its adapter.type is {metadata.get('adapter.type')!r}, not 'lora'")
    if not isinstance(metadata.get("adapter.lora.alpha", 0.0), float):
        raise BrokenGGUF("its adapter.lora.alpha is not a number")
    if _INVOCATION in header.lengths or _INVOCATION in metadata:
        raise BrokenGGUF("it is an activated LoRA (aLoRA), which is not supported")
    if metadata.get("general.architecture") != architecture:
        raise BrokenGGUF(f"it is for the architecture {metadata.get('general.architecture')!r}, not {architecture!r}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def default_adapters(adapters: Sequence[Adapter]) -> Adapters:
    return tuple((number, adapter.scale) for number, adapter in enumerate(adapters) if adapter.scale)


def parse_adapters(adapters: Sequence[Adapter], listed: Iterable[tuple[int, float]], *, param: str) -> Adapters:
    """The adapters of a list of ids and scales; the others are off. `param` is the field that holds the list.

    Raises `InvalidRequest` for an unknown or repeated id.
    """
    found: dict[int, float] = {}
    for place, (number, scale) in enumerate(listed):
        at = f"{param}[{place}].id"
        if not 0 <= number < len(adapters):
            known = f"ids are 0 to {len(adapters) - 1}" if adapters else "the model has no adapters"
            raise InvalidRequest(f"{at}: unknown adapter {number}; {known}", param=at)
        if number in found:
            raise InvalidRequest(f"{at}: adapter {number} is listed twice", param=at)
        found[number] = scale
    return tuple(sorted((number, scale) for number, scale in found.items() if scale))


def fingerprint(info: ModelInfo, adapters: Adapters) -> str:
    """The model's fingerprint, combined with its active adapters."""
    if not adapters:
        return info.fingerprint
    active = [(info.adapters[number], scale) for number, scale in adapters]
    return f"fp_{hashlib.sha256(f'{info.fingerprint} {active}'.encode()).hexdigest()[:16]}"

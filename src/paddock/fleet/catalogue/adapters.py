"""LoRA adapters of a model: what their files say of them, and which of them act on a request."""

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
    """How strongly it acts unless somebody says otherwise."""
    task_name: str = ""
    prompt_prefix: str = ""


def read_adapter(path: Path, scale: float, *, architecture: str | None) -> Adapter:
    """What an adapter's file says. Raises `BrokenGGUF`, naming the file, if it is none for a model like this."""
    try:
        header = read_header(path)
        _check(header, architecture)
    except BrokenGGUF as error:
        raise BrokenGGUF(f"the adapter {path} cannot be used: {error}") from None
    except OSError as error:
        raise BrokenGGUF(f"the adapter {path} cannot be read: {error.strerror}") from None
    said = header.metadata
    return Adapter(
        str(path),
        scale,
        task_name=_text(said.get("adapter.lora.task_name")),
        prompt_prefix=_text(said.get("adapter.lora.prompt_prefix")),
    )


def _check(header: Header, architecture: str | None) -> None:
    said = header.metadata
    if said.get("general.type") != "adapter":
        raise BrokenGGUF(f"its general.type is {said.get('general.type')!r}, not 'adapter'")
    if said.get("adapter.type") != "lora":
        raise BrokenGGUF(f"its adapter.type is {said.get('adapter.type')!r}, not 'lora'")
    if not isinstance(said.get("adapter.lora.alpha", 0.0), float):
        raise BrokenGGUF("its adapter.lora.alpha is no number")
    if _INVOCATION in header.lengths or _INVOCATION in said:
        raise BrokenGGUF("it acts only after certain tokens (aLoRA), which is not supported")
    if said.get("general.architecture") != architecture:
        raise BrokenGGUF(f"it is for the architecture {said.get('general.architecture')!r}, not {architecture!r}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def acting_at_first(adapters: Sequence[Adapter]) -> Adapters:
    return tuple((number, adapter.scale) for number, adapter in enumerate(adapters) if adapter.scale)


def acting(adapters: Sequence[Adapter], listed: Iterable[tuple[int, float]], *, param: str) -> Adapters:
    """The set that a list of numbers and scales means; what is not in it does not act. Raises `InvalidRequest` for
    a number that no adapter has, or that comes twice; `param` is the field that holds the list.
    """
    found: dict[int, float] = {}
    for place, (number, scale) in enumerate(listed):
        at = f"{param}[{place}].id"
        if not 0 <= number < len(adapters):
            there = f"there are {len(adapters)}" if adapters else "there are none"
            raise InvalidRequest(f"{at}: there is no adapter {number}; {there}", param=at)
        if number in found:
            raise InvalidRequest(f"{at}: adapter {number} is listed twice", param=at)
        found[number] = scale
    return tuple(sorted((number, scale) for number, scale in found.items() if scale))


def fingerprint(info: ModelInfo, acting: Adapters) -> str:
    """A model's own, unless something acts on it."""
    if not acting:
        return info.fingerprint
    acts = [(info.adapters[number], scale) for number, scale in acting]
    return f"fp_{hashlib.sha256(f'{info.fingerprint} {acts}'.encode()).hexdigest()[:16]}"

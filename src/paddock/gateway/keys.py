"""The API keys of the settings, and what each of them may do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paddock.config import KeySettings, ServerSettings
from paddock.errors import StartupError
from paddock.gateway.callers import Caller
from paddock.gateway.limits import Rates
from paddock.types import Origin


@dataclass(frozen=True, slots=True)
class Key:
    digest: bytes
    """All that is kept of it."""
    caller: Caller
    rates: Rates


def read_keys(settings: ServerSettings) -> list[Key]:
    """All keys of the settings and of the file they name. Raises `StartupError`."""
    keys = [*_plain_keys(settings), *(_key(name, said) for name, said in settings.keys.items())]
    owners: dict[bytes, str] = {}
    for key in keys:
        name = key.caller.name
        if name in owners.values():
            raise StartupError(f"two API keys are called {name!r}")
        if key.digest in owners:
            raise StartupError(f"the API keys {owners[key.digest]!r} and {name!r} are the same")
        owners[key.digest] = name
    return keys


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _plain_keys(settings: ServerSettings) -> Iterator[Key]:
    """Those without a name are called by their number. As with llama-server each of them may do everything."""
    keys = list(settings.api_keys)
    if settings.api_key_file is not None:
        keys += _lines(settings.api_key_file)
    for number, key in enumerate(keys, 1):
        name = f"api-key-{number}"
        yield Key(_digest_of(key, name), Caller(name, admin=True, origin=Origin(key=name)), Rates())


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read the API key file {file}: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise StartupError(f"there is no key in the API key file {file}: it would lock nobody out")
    return keys


def _key(name: str, said: KeySettings) -> Key:
    tenant = said.tenant or ""
    origin = Origin(
        key=name,
        # No tenant is called like that: names have no slash.
        tenant=tenant if said.share_prefixes else f"{tenant}/{name}",
        weight=said.weight,
        batch=said.priority == "batch",
    )
    models = None if said.models is None else tuple(said.models)
    if said.hash is not None:
        known = bytes.fromhex(said.hash.removeprefix("sha256:"))
    else:
        known = _digest_of(said.key or "", name)
    return Key(known, Caller(name, said.admin, origin, models), Rates.of(said))


def _digest_of(key: str, name: str) -> bytes:
    if not key:
        raise StartupError("an API key is empty: it would lock nobody out")
    if key != key.strip():
        raise StartupError(f"the API key {name!r} begins or ends with a space, which no request can send")
    return digest(key.encode("utf-8", "surrogateescape"))

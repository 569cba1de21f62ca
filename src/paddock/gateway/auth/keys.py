"""The API keys of the settings, and what each of them may do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from paddock.config import KeySettings, PreviousKey, ServerSettings
from paddock.errors import StartupError
from paddock.gateway.auth.caller import Caller
from paddock.gateway.auth.limits import Rates
from paddock.types import Origin


@dataclass(frozen=True, slots=True)
class Key:
    digest: bytes
    """All that is kept of it."""
    caller: Caller
    rates: Rates
    expires_at: float | None = None
    """Seconds since 1970."""

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def read_keys(settings: ServerSettings, *, gateways: int = 1) -> list[Key]:
    """All keys of the settings and of the file they name, with one gateway's share of their limits where several
    gateways serve them. Raises `StartupError`.
    """
    plain = dict(_plain_keys(settings))
    for name in plain.keys() & settings.keys.keys():
        raise StartupError(f"two API keys are called {name!r}")
    keys = [
        *(Key(known, Caller(name, admin=True, origin=Origin(key=name)), Rates()) for name, known in plain.items()),
        *(key for name, said in settings.keys.items() for key in _keys(name, said)),
    ]
    keys = [replace(key, rates=key.rates.divided(gateways)) for key in keys]
    owners: dict[bytes, str] = {}
    for key in keys:
        name = key.caller.name
        if key.digest in owners:
            raise StartupError(f"the API keys {owners[key.digest]!r} and {name!r} are the same")
        owners[key.digest] = name
    return keys


def hashed_keys(settings: ServerSettings) -> dict[str, KeySettings]:
    """The same keys as hashes only, for places where others may read them. Raises `StartupError`."""
    found = {name: KeySettings(hash=_written(known), admin=True) for name, known in _plain_keys(settings)}
    for name, said in settings.keys.items():
        data = said.model_dump(exclude_unset=True, exclude={"key", "previous"})
        data["hash"] = _written(_digest_of_entry(said, name))
        if said.previous:
            data["previous"] = [
                {"hash": _written(_digest_of_entry(old, name)), "expires_at": old.expires_at} for old in said.previous
            ]
        found[name] = KeySettings.model_validate(data)
    return found


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _plain_keys(settings: ServerSettings) -> Iterator[tuple[str, bytes]]:
    """Those without a name are called by their number. As with llama-server each of them may do everything."""
    keys = list(settings.api_keys)
    if settings.api_key_file is not None:
        keys += _lines(settings.api_key_file)
    for number, key in enumerate(keys, 1):
        name = f"api-key-{number}"
        yield name, _digest_of(key, name)


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read the API key file {file}: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise StartupError(f"there is no key in the API key file {file}: it would lock nobody out")
    return keys


def _keys(name: str, said: KeySettings) -> Iterator[Key]:
    """The newest key of a name, then those that it replaces. They have the same rights, limits and account."""
    tenant = said.tenant or ""
    origin = Origin(
        key=name,
        # No tenant is called like that: names have no slash.
        tenant=tenant if said.share_prefixes else f"{tenant}/{name}",
        weight=said.weight,
        batch=said.priority == "batch",
    )
    models = None if said.models is None else tuple(said.models)
    caller, rates = Caller(name, said.admin, origin, models, said.metrics), Rates.of(said)
    entries: list[KeySettings | PreviousKey] = [said, *said.previous]
    for entry in entries:
        expires_at = entry.expires_at.timestamp() if entry.expires_at is not None else None
        yield Key(_digest_of_entry(entry, name), caller, rates, expires_at)


def _digest_of_entry(entry: KeySettings | PreviousKey, name: str) -> bytes:
    if entry.hash is not None:
        return bytes.fromhex(entry.hash.removeprefix("sha256:"))
    return _digest_of(entry.key or "", name)


def _written(known: bytes) -> str:
    return f"sha256:{known.hex()}"


def _digest_of(key: str, name: str) -> bytes:
    if not key:
        raise StartupError("an API key is empty: it would lock nobody out")
    if key != key.strip():
        raise StartupError(f"the API key {name!r} begins or ends with a space, which no request can send")
    return digest(key.encode("utf-8", "surrogateescape"))

"""Reads the API keys from the settings, with their permissions and limits."""

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
    """SHA-256. The key itself is not kept."""
    caller: Caller
    rates: Rates
    expires_at: float | None = None
    """Unix time."""

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def read_keys(settings: ServerSettings, *, gateways: int = 1) -> list[Key]:
    """All keys of the settings and of the API key file. With several gateways the limits are one gateway's share.
    Raises `StartupError`.
    """
    plain = dict(_plain_keys(settings))
    for name in plain.keys() & settings.keys.keys():
        raise StartupError(f"two API keys are named {name!r}")
    keys = [
        *(Key(known, Caller(name, admin=True, origin=Origin(key=name)), Rates()) for name, known in plain.items()),
        *(key for name, entry in settings.keys.items() for key in _keys(name, entry)),
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
    """The same keys as hashes, for places that others can read. Raises `StartupError`."""
    found = {name: KeySettings(hash=_hex(known), admin=True) for name, known in _plain_keys(settings)}
    for name, entry in settings.keys.items():
        data = entry.model_dump(exclude_unset=True, exclude={"key", "previous"})
        data["hash"] = _hex(_digest_of_entry(entry, name))
        if entry.previous:
            data["previous"] = [
                {"hash": _hex(_digest_of_entry(old, name)), "expires_at": old.expires_at} for old in entry.previous
            ]
        found[name] = KeySettings.model_validate(data)
    return found


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _plain_keys(settings: ServerSettings) -> Iterator[tuple[str, bytes]]:
    """Keys without a name are numbered. As in llama-server each of them has all permissions."""
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
        raise StartupError(f"there is no key in the API key file {file}: add one key per line, or remove the setting")
    return keys


def _keys(name: str, entry: KeySettings) -> Iterator[Key]:
    """The current key of a name, then its previous keys. They share permissions, limits and usage."""
    tenant = entry.tenant or ""
    origin = Origin(
        key=name,
        # Unique, because names of tenants have no slash.
        tenant=tenant if entry.share_prefixes else f"{tenant}/{name}",
        weight=entry.weight,
        batch=entry.priority == "batch",
    )
    models = None if entry.models is None else tuple(entry.models)
    caller, rates = Caller(name, entry.admin, origin, models, entry.metrics), Rates.of(entry)
    every: list[KeySettings | PreviousKey] = [entry, *entry.previous]
    for each in every:
        expires_at = each.expires_at.timestamp() if each.expires_at is not None else None
        yield Key(_digest_of_entry(each, name), caller, rates, expires_at)


def _digest_of_entry(entry: KeySettings | PreviousKey, name: str) -> bytes:
    if entry.hash is not None:
        return bytes.fromhex(entry.hash.removeprefix("sha256:"))
    return _digest_of(entry.key or "", name)


def _hex(known: bytes) -> str:
    return f"sha256:{known.hex()}"


def _digest_of(key: str, name: str) -> bytes:
    if not key:
        raise StartupError(f"the API key {name!r} is empty")
    if key != key.strip():
        raise StartupError(f"the API key {name!r} starts or ends with a space, which no request can send")
    return digest(key.encode("utf-8", "surrogateescape"))

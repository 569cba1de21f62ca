"""Reads the API keys from the settings, with their permissions and limits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paddock.config import KeySettings, PreviousKey, ServerSettings
from paddock.errors import StartupError
from paddock.gateway.auth.caller import Caller
from paddock.gateway.auth.limits import Rates
from paddock.types import Origin

_ALGORITHM = "sha256:"


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
    owners: dict[bytes, str] = {}
    keys: list[Key] = []
    for name, entry in hashed_keys(settings).items():
        for key in _keys(name, entry, gateways):
            if key.digest in owners:
                raise StartupError(f"the API keys {owners[key.digest]!r} and {name!r} are the same")
            owners[key.digest] = name
            keys.append(key)
    return keys


def hashed_keys(settings: ServerSettings) -> dict[str, KeySettings]:
    """All keys as hashes, so that they can be stored where others can read them. Raises `StartupError`.

    Keys without a name are numbered. As in llama-server each of them has all permissions.
    """
    plain = settings.api_keys + (_lines(settings.api_key_file) if settings.api_key_file is not None else [])
    names = (f"api-key-{number}" for number in range(1, len(plain) + 1))
    found = {name: KeySettings(hash=_hash(key, name), admin=True) for name, key in zip(names, plain, strict=True)}
    for name, entry in settings.keys.items():
        if name in found:
            raise StartupError(f"two API keys are named {name!r}")
        data = entry.model_dump(exclude_unset=True, exclude={"key", "previous"})
        data["hash"] = _hash_of(entry, name)
        if entry.previous:
            data["previous"] = [{"hash": _hash_of(old, name), "expires_at": old.expires_at} for old in entry.previous]
        found[name] = KeySettings.model_validate(data)
    return found


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read the API key file {file}: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise StartupError(f"there is no key in the API key file {file}: add one key per line, or remove the setting")
    return keys


def _keys(name: str, entry: KeySettings, gateways: int) -> Iterator[Key]:
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
    caller = Caller(name, entry.admin, origin, models, entry.metrics, tuple(entry.mcp_servers))
    rates = Rates.of(entry).divided(gateways)
    every: list[KeySettings | PreviousKey] = [entry, *entry.previous]
    for each in every:
        assert each.hash is not None, "hashed_keys sets it"
        expires_at = each.expires_at.timestamp() if each.expires_at is not None else None
        yield Key(bytes.fromhex(each.hash.removeprefix(_ALGORITHM)), caller, rates, expires_at)


def _hash_of(entry: KeySettings | PreviousKey, name: str) -> str:
    return entry.hash or _hash(entry.key or "", name)


def _hash(key: str, name: str) -> str:
    if not key:
        raise StartupError(f"the API key {name!r} is empty")
    if key != key.strip():
        raise StartupError(f"the API key {name!r} starts or ends with a space, which no request can send")
    return _ALGORITHM + digest(key.encode("utf-8", "surrogateescape")).hex()

"""Who may ask: API keys, compared in constant time and kept as hashes only."""

from __future__ import annotations

import hashlib
import hmac

from fastapi import Request

from paddock.config import ServerSettings
from paddock.errors import AuthenticationError, StartupError
from paddock.gateway.callers import CALLER, NOBODY, Caller


class Keys:
    """A FastAPI dependency that lets a request through or raises. Without keys everybody may ask."""

    def __init__(self, settings: ServerSettings) -> None:
        keys = list(settings.api_keys)
        if settings.api_key_file is not None:
            try:
                lines = settings.api_key_file.read_text("utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise StartupError(f"cannot read the API key file {settings.api_key_file}: {error}") from None
            keys += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if any(not key for key in keys):
            raise StartupError("an API key is empty: it would lock nobody out")
        self._hashes = [_hash(key) for key in keys]

    async def __call__(self, request: Request) -> None:
        if not self._hashes:
            request.scope[CALLER] = NOBODY
            return
        presented = request.headers.get("x-api-key") or ""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            presented = token.strip()
        if not presented:
            raise AuthenticationError("an API key is required: send it as 'Authorization: Bearer KEY'")
        digest = _hash(presented)
        # Every key is compared, so that the time taken tells nothing about which one was near.
        if not sum(hmac.compare_digest(digest, known) for known in self._hashes):
            raise AuthenticationError("this API key is not known here")
        request.scope[CALLER] = Caller()


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

"""TLS, with a certificate that can be renewed while the server runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import NoReturn

import structlog

from paddock.config import ServerSettings
from paddock.errors import StartupError

_log = structlog.get_logger(__name__)
_EVERY = 5.0
"""Seconds between two checks of the files."""


class Certificate:
    """The two files, and the context of new connections. Open connections keep theirs."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Raises `StartupError` if the files are not a certificate and its key."""
        self._files = (cert_file, key_file)
        self._seen = self._stamp()
        self._current = self._load()
        # Each new connection switches to the current context before the certificate is sent.
        self.context = self._load()
        self.context.sni_callback = self._hand_over

    @classmethod
    def of(cls, settings: ServerSettings) -> Certificate | None:
        cert_file, key_file = settings.ssl_cert_file, settings.ssl_key_file
        if cert_file is None and key_file is None:
            return None
        if cert_file is None or key_file is None:
            raise StartupError("TLS requires both ssl_key_file and ssl_cert_file")
        return cls(cert_file, key_file)

    async def watch(self) -> None:
        """Check the files periodically."""
        while True:
            await asyncio.sleep(_EVERY)
            self.renew()

    def renew(self) -> None:
        """Load the files if they have changed. If that fails, the current certificate stays."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._current = self._load()
        except StartupError as error:
            _log.error("the certificate was not renewed", error=error.message)
        else:
            _log.info("the certificate was renewed", file=str(self._files[0]))

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _from: ssl.SSLContext) -> None:
        connection.context = self._current

    def _stamp(self) -> list[tuple[int, int, int]] | None:
        try:
            status = [file.stat() for file in self._files]
        except OSError:
            return None
        return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in status]

    def _load(self) -> ssl.SSLContext:
        cert_file, key_file = self._files
        for what, file in (("certificate", cert_file), ("key", key_file)):
            try:
                file.read_bytes()
            except OSError as error:
                raise StartupError(f"cannot read the TLS {what} {file}: {error.strerror}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(cert_file, key_file, password=_no_password)
        except _Encrypted:
            raise StartupError(f"the TLS key {key_file} is encrypted: use a key without a password") from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise StartupError(f"the TLS key {key_file} does not belong to the certificate {cert_file}") from None
            reason = error.reason or "unknown format"
            raise StartupError(
                f"{cert_file} and {key_file} are not a certificate and its key in PEM form: {reason}"
            ) from None
        return context


class _Encrypted(Exception):
    pass


def _no_password() -> NoReturn:
    raise _Encrypted  # OpenSSL would ask for it on the terminal

"""Can files be read and written that must be, and by nobody who should not?"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from paddock.cli.doctor.finding import Finding, size

_ABOUT = "permissions"
_LITTLE = 1 << 30


def check_secret(file: Path, what: str) -> Iterator[Finding]:
    """A file that the server must read and others must not."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        yield Finding("problem", _ABOUT, f"{what} {file}: {error.strerror}", "correct the path, or make the file")
        return
    if not os.access(file, os.R_OK):
        yield Finding(
            "problem",
            _ABOUT,
            f"{what} {file} cannot be read by this user",
            f"give it to the user who serves: chown USER {file}",
        )
    elif mode & (stat.S_IROTH | stat.S_IWOTH):
        yield Finding("warning", _ABOUT, f"{what} {file} can be read by everybody here", f"chmod 600 {file}")
    else:
        yield Finding("ok", _ABOUT, f"{what} {file} is closed to others")


def check_tls(certificate: Path | None, key: Path | None) -> Iterator[Finding]:
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        yield Finding("problem", "tls", "TLS needs both ssl_key_file and ssl_cert_file", "set the other one too")
        return
    yield from check_secret(key, "the TLS key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        yield Finding(
            "problem",
            "tls",
            f"{certificate} and {key} do not make a certificate: {error.reason or error}",
            "both must be PEM, the key without a password, and belong together",
        )
    except OSError as error:
        yield Finding("problem", "tls", f"{certificate} or {key} cannot be read: {error.strerror}", "correct the path")
    else:
        yield Finding("ok", "tls", f"{certificate} and its key belong together")


def check_slots(folder: Path | None) -> Iterator[Finding]:
    if folder is None:
        return
    if not folder.is_dir():
        yield Finding("problem", _ABOUT, f"the folder for saved slots {folder} does not exist", f"mkdir -p {folder}")
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            "problem",
            _ABOUT,
            f"the folder for saved slots {folder} cannot be written to by this user",
            f"give it to the user who serves: chown USER {folder}",
        )
    else:
        yield Finding("ok", _ABOUT, f"slots can be saved in {folder}")


def check_space(folder: Path, free: int) -> Finding:
    if free < _LITTLE:
        return Finding(
            "warning",
            "disk",
            f"{size(free)} are free where {folder} is",
            "remove models that nobody uses: saved slots and downloads need room",
        )
    return Finding("ok", "disk", f"{size(free)} are free where {folder} is")


def check_open_files(most: int) -> Finding:
    """Each connection is one, and each worker a few. The server asks for as many as it may have."""
    if 0 <= most < 4096:
        return Finding(
            "warning",
            "limits",
            f"at most {most} files can be open, which is about as many connections",
            "raise the limit where it is started: LimitNOFILE=65536, as `paddock service install` does",
        )
    return Finding("ok", "limits", f"{'any number of' if most < 0 else most} files can be open at once")

"""TLS with generated certificates, which are renewed while connections are open."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.forking import run_command
from tests.server import Server, wait_for
from tests.sockets import GET_HEALTH, Wire
from tests.tiers import full

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is missing")


def _make(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key),
         "-out", str(cert), *(more or ["-nodes"])],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


def _flags(key: Path, cert: Path) -> list[str]:
    return ["--ssl-key-file", str(key), "--ssl-cert-file", str(cert)]


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _shown(server: Server) -> bytes:
    with Wire(server.url, _trusting()) as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        shown = wire.socket.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def _der(cert: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(cert.read_text())


def _put(new: Path, place: Path) -> None:
    """Replace a file atomically, as certificate renewers do."""
    beside = place.with_suffix(".new")
    shutil.copy(new, beside)
    os.replace(beside, place)


@full
def test_a_renewed_certificate_keeps_open_connections(tmp_path: Path) -> None:
    key, cert = tmp_path / "live.key", tmp_path / "live.pem"
    old, new = _make(tmp_path, "old"), _make(tmp_path, "new")
    _put(old[0], key)
    _put(old[1], cert)
    with Server("-m", "fake:", *_flags(key, cert)) as server, Wire(server.url, _trusting()) as early:
        assert server.url.startswith("https://")
        assert early.send(GET_HEALTH).answer().status == 200
        assert _shown(server) == _der(old[1])
        # A certificate without its key is not valid: the old pair stays, and the log says so.
        _put(new[1], cert)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any("was not renewed" in line for line in server.output), 20, "the refusal")
        assert any("does not belong to the certificate" in line for line in server.output)
        assert _shown(server) == _der(old[1])
        _put(new[0], key)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any("was renewed" in line for line in server.output), 20, "the renewal")
        assert _shown(server) == _der(new[1])
        assert early.send(GET_HEALTH).answer().status == 200
        # The server also notices new files without a signal.
        _put(old[0], key)
        _put(old[1], cert)
        wait_for(lambda: _shown(server) == _der(old[1]), 30, "the certificate to be renewed")


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    with Server("-m", "fake:", *_flags(*_make(tmp_path, "one"))) as server:
        context = _trusting()
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # otherwise the client refuses first
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            context.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|EOF"):
            Wire(server.url, context)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = _trusting()
            context.minimum_version = context.maximum_version = version
            with Wire(server.url, context) as wire:
                assert wire.send(GET_HEALTH).answer().status == 200


def test_errors_of_the_files_are_explained(tmp_path: Path) -> None:
    one, two = _make(tmp_path, "one"), _make(tmp_path, "two")
    secret = _make(tmp_path, "secret", "-passout", "pass:hush")
    empty = tmp_path / "empty.pem"
    empty.touch()
    for flags, said in (
        (_flags(one[0], two[1]), "does not belong to the certificate"),
        (_flags(*secret), "is encrypted"),
        (_flags(one[0], empty), "are not a certificate and its key in PEM form"),
        (_flags(one[0], tmp_path / "none.pem"), "No such file"),
        (_flags(*one)[:2], "requires both"),
    ):
        done = run_command("serve", "-m", "fake:", "--port", "0", *flags)
        assert done.returncode == 1
        assert said in done.stderr
        assert done.stderr.startswith("paddock: ") and done.stderr.count("\n") == 1


def test_strict_transport_security_unless_loopback(tmp_path: Path) -> None:
    with Server("-m", "fake:", "--host", "0.0.0.0", "--api-key", "k", *_flags(*_make(tmp_path, "one"))) as server:
        with Wire(server.url.replace("0.0.0.0", "127.0.0.1"), _trusting()) as wire:
            assert "max-age" in wire.send(GET_HEALTH).answer().headers["strict-transport-security"]


def _silent_connections(server: Server, count: int, opened: contextlib.ExitStack) -> list[Wire]:
    """Connections that send nothing, not even a ClientHello."""
    return [opened.enter_context(Wire(server.url)) for _ in range(count)]


def test_an_unfinished_handshake_times_out(tmp_path: Path) -> None:
    env = {"PADDOCK_SERVER__HANDSHAKE_TIMEOUT": "1"}
    with Server("-m", "fake:", *_flags(*_make(tmp_path, "one")), env=env) as server:
        with contextlib.ExitStack() as opened:
            silent, half = _silent_connections(server, 2, opened)
            half.send(b"\x16\x03\x01\x02")  # the beginning of a ClientHello
            assert silent.closed() and half.closed()
            with Wire(server.url, _trusting()) as wire:
                assert wire.send(GET_HEALTH).answer().status == 200


def test_handshakes_count_as_connections(tmp_path: Path) -> None:
    env = {"PADDOCK_SERVER__HANDSHAKE_TIMEOUT": "600", "PADDOCK_SERVER__MAX_CONNECTIONS": "16"}
    with Server("-m", "fake:", *_flags(*_make(tmp_path, "one")), env=env) as server:
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        with contextlib.ExitStack() as opened:
            silent = _silent_connections(server, 300, opened)
            # The oldest ones were closed: the limit of one address is 8.
            assert all(wire.closed() for wire in silent[:-8])
            assert len(list(descriptors.iterdir())) <= before + 16
            with Wire(server.url, _trusting()) as wire:
                assert wire.send(GET_HEALTH).answer().status == 200
                wire.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert b"\npaddock_http_connections 8.0\n" in wire.answer().body
        assert server.stop() == 0


@full
def test_a_request_directly_after_the_handshake(tmp_path: Path) -> None:
    with Server("-m", "fake:", *_flags(*_make(tmp_path, "one"))) as server:
        for _ in range(20):
            with Wire(server.url, _trusting()) as wire:
                wire.send(GET_HEALTH + GET_HEALTH)
                assert wire.answer().status == wire.answer().status == 200
        with Wire(server.url) as wire:  # no TLS at all
            assert wire.send(GET_HEALTH).closed()

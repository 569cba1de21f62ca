"""Finds a running server, or starts one for as long as a command runs."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import click
import httpx
import msgspec

URL_VARIABLE, KEY_VARIABLE = "PADDOCK_URL", "PADDOCK_API_KEY"
_START_SECONDS = 60.0
_IGNORED_FIELDS = "x-paddock-ignored-fields"
_ALONE = ("--host", "127.0.0.1", "--api-prefix", "", "--ssl-key-file", "", "--ssl-cert-file", "")


class NotFound(click.ClickException):
    """The server does not have what was asked for."""


class ServerUnreachable(click.ClickException):
    """No server answers at the address."""


class Server:
    """A server's API, as the commands use it."""

    def __init__(self, url: str, key: str | None, prefix: str = "", certificate: Path | None = None) -> None:
        """`url` may be a unix socket, `unix:///run/paddock.sock`. All paths of the API are below `prefix`. With a
        `certificate`, the server must have this one, whatever name is in it.
        """
        self.url, self.key = url.rstrip("/") + prefix, key
        scheme, _, place = url.partition("://")
        is_unix = scheme == "unix"
        self._client = httpx.Client(
            base_url=f"http://localhost{prefix}" if is_unix else self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(10, read=None),
            transport=httpx.HTTPTransport(uds=unquote(place)) if is_unix else None,
            verify=_trusting(certificate) if certificate is not None else True,
        )

    def is_running(self) -> bool:
        try:
            return self._client.get("/health", timeout=2).status_code in (200, 503)
        except httpx.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise click.ClickException(
                    f"the certificate of {self.url} is not trusted; SSL_CERT_FILE can name a file of trusted ones"
                ) from None
        except httpx.HTTPError:
            pass
        return False

    def models(self) -> list[dict[str, Any]]:
        """The models, as `GET /v1/models` lists them."""
        models: list[dict[str, Any]] = self.request("GET", "/v1/models")["data"]
        return models

    def status(self) -> dict[str, Any]:
        return self.request("GET", "/admin/status")

    def metrics(self) -> str:
        """The text of `GET /metrics`."""
        with self._reached():
            response = self._client.get("/metrics", timeout=5)
        _check(response)
        return response.text

    def unload(self, model: str) -> list[str]:
        """Unload a model after its running requests. Returns the names of the models that were loaded."""
        unloaded: list[str] = self.request("POST", "/admin/unload", {"model": model})["models"]
        return unloaded

    def cache(self) -> dict[str, Any]:
        return self.request("GET", "/admin/cache")

    def clear_cache(self, model: str | None, tenant: str | None) -> dict[str, Any]:
        """Returns what is left."""
        return self.request("POST", "/admin/cache/clear", {"model": model, "tenant": tenant})

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """A whole chat completion."""
        return self.request("POST", "/v1/chat/completions", body)

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        """A streamed chat completion: its events, and as texts the comments that show how far the model is loaded."""
        with self._reached(), self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                response.read()
                _check(response)
            if ignored := response.headers.get(_IGNORED_FIELDS):
                click.echo(f"paddock: the server does not know {ignored}", err=True)
            for line in response.iter_lines():
                if line.startswith(":"):
                    yield line[1:].strip()
                elif line.startswith("data: ") and line != "data: [DONE]":
                    event = msgspec.json.decode(line.removeprefix("data: "))
                    if "error" in event:
                        raise click.ClickException(event["error"]["message"])
                    yield event

    def request(self, method: str, path: str, body: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """The JSON of any route. `options` are those of httpx: `params`, or `data` and `files` for a form."""
        with self._reached():
            response = self._client.request(method, path, json=body, **options)
        _check(response)
        decoded: dict[str, Any] = response.json()
        return decoded

    def download(self, path: str, file: BinaryIO) -> None:
        """Write the content of a route to a file."""
        with self._reached(), self._client.stream("GET", path) as response:
            if response.is_error:
                response.read()
            _check(response)
            for part in response.iter_bytes():
                file.write(part)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise ServerUnreachable(f"no server answers at {self.url}: start one with `paddock serve`") from None
        except httpx.HTTPError as error:
            raise click.ClickException(f"the connection to {self.url} failed: {error}") from None


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    with suppress(msgspec.DecodeError, KeyError, TypeError):
        message = msgspec.json.decode(response.content)["error"]["message"]
        raise (NotFound if response.status_code == HTTPStatus.NOT_FOUND else click.ClickException)(message)
    raise click.ClickException(f"the server answered {response.status_code}: {response.text[:200]}")


def configured_server(url: str | None, key: str | None) -> Server:
    """The server at `url`, or else at the address of the environment or of the settings."""
    from paddock.config import load_settings
    from paddock.errors import StartupError
    from paddock.hosts import address_url, reachable

    url = url or os.environ.get(URL_VARIABLE)
    key = key or os.environ.get(KEY_VARIABLE)
    prefix, certificate = "", None
    if url is None:
        try:
            server = load_settings().server
        except StartupError as error:
            raise click.ClickException(error.message) from None
        url = address_url(reachable(server.hosts[0]), server.port, tls=server.ssl_cert_file is not None)
        key, prefix = key or next(iter(server.api_keys), None), server.api_prefix
        certificate = server.ssl_cert_file
    return Server(url, key, prefix, certificate)


def _trusting(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate need not be its own authority
    try:
        context.load_verify_locations(certificate)
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(f"cannot read the certificate {certificate}: {error}") from None
    return context


@contextmanager
def started_server(arguments: Sequence[str], key: str | None) -> Iterator[Server]:
    """A server of our own on a free port of this machine, with the same settings. It ends with the command."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Not a pipe: nothing reads it, so it would fill up.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "paddock", "serve", "--port", str(port), *_ALONE, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends an answer, not the server
            env=os.environ | {"PADDOCK_SERVER__LOG_LEVEL": "ERROR"},
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", key)
            deadline = time.monotonic() + _START_SECONDS
            while not server.is_running():
                if process.poll() is not None:
                    log.seek(0)
                    problem = log.read().strip().removeprefix("paddock: ")
                    raise click.ClickException(problem or "the server ended while it started")
                if time.monotonic() > deadline:
                    raise click.ClickException(f"the server did not start within {_START_SECONDS:.0f} seconds")
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

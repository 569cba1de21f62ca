"""Files that a request names by URL: downloaded from allowed hosts, or read from a folder. Nothing is decoded here."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import msgspec

from paddock.config import HostRules
from paddock.errors import InvalidRequest
from paddock.gateway.http.body_budget import HeldBody
from paddock.types import ChatPrompt, GenerateRequest, MediaFile, Prompt

LARGEST_FILE: Final = 32 << 20
"""Bytes of one file. Workers have the same limit."""
_SECONDS: Final = 10.0
"""For one file, redirects included."""
_MOST_REDIRECTS: Final = 3
_MOST_ADDRESSES: Final = 4
"""Of one host that are tried."""
_AT_ONCE: Final = 8
_LONGEST_PATH: Final = 1024
_HEADERS: Final = {"Accept": "image/*, audio/*, */*;q=0.1", "Accept-Encoding": "identity", "User-Agent": "paddock"}


class MediaSources:
    """`limit`: the most bytes of all files of a request, as of its body."""

    def __init__(self, hosts: HostRules, folder: Path | None, *, limit: int) -> None:
        self._hosts = hosts
        self._folder = folder
        self._limit = limit
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._opening = asyncio.Lock()
        self._client: httpx.AsyncClient | None = None

    async def fetch_all(self, requests: Sequence[GenerateRequest], held: HeldBody | None) -> Sequence[GenerateRequest]:
        """The requests with the files that their prompts name. What is read is charged to the body of the request.

        Raises `InvalidRequest`, which names the field.
        """
        return [
            msgspec.structs.replace(request, prompt=await self.fetch(request.prompt, held))
            if _is_incomplete(request.prompt)
            else request
            for request in requests
        ]

    async def fetch(self, prompt: Prompt, held: HeldBody | None) -> Prompt:
        """The prompt with the files that it names."""
        if not isinstance(prompt, ChatPrompt) or not _is_incomplete(prompt):
            return prompt
        room = _Room(self._limit, held)
        tasks = [asyncio.ensure_future(self._file(file, room)) for file in prompt.media]
        try:
            return msgspec.structs.replace(prompt, media=tuple(await asyncio.gather(*tasks)))
        finally:
            for task in tasks:
                task.cancel()

    async def _file(self, file: MediaFile, room: _Room) -> MediaFile:
        if not file.url:
            return file
        scheme = file.url.partition(":")[0].lower()
        try:
            if scheme == "file":
                content = await self._read(file.url, room)
            else:
                content = await self._download(file.url, room)
        except MediaRefused as error:
            raise InvalidRequest(f"{file.param}: {error}", param=file.param) from None
        return msgspec.structs.replace(file, url="", content=content)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, url: str, room: _Room) -> bytes:
        if self._folder is None:
            raise MediaRefused(
                "this server does not read file: URLs: start it with --media-path DIR, or send the file itself as "
                "data:TYPE;base64,DATA"
            )
        content = await asyncio.to_thread(read_below, self._folder, url[len("file://") :])
        room.take(len(content))
        return content

    # ── downloads ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _download(self, url: str, room: _Room) -> bytes:
        if not self._hosts:
            scheme = url.partition(":")[0].lower()
            raise MediaRefused(
                f"this server does not read {scheme}: URLs: start it with --media-url-hosts HOST, or send the file "
                "itself as data:TYPE;base64,DATA"
            )
        try:
            async with self._turns, asyncio.timeout(_SECONDS):
                for _ in range(_MOST_REDIRECTS + 1):
                    found = await self._get(_parsed(url), room)
                    if isinstance(found, bytes):
                        return found
                    url = str(found)
        except TimeoutError:
            raise MediaRefused(f"the download took longer than {_SECONDS:g} s") from None
        except httpx.HTTPError as error:
            # The reason without the address: it may say what is inside a network.
            raise MediaRefused(f"the download failed: {type(error).__name__}") from None
        raise MediaRefused(f"the download was redirected more than {_MOST_REDIRECTS} times")

    async def _get(self, url: httpx.URL, room: _Room) -> bytes | httpx.URL:
        """The content, or the URL of a redirect."""
        host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
        if not self._hosts.allows_host(url.scheme, host, port):
            raise MediaRefused(f"the host {host} (port {port}) is not one of --media-url-hosts")
        failure: httpx.HTTPError | None = None
        for address in (await self._addresses(url.scheme, host, port))[:_MOST_ADDRESSES]:
            # The connection goes to the address that was checked: nothing is resolved again.
            pinned = url.copy_with(host=address)
            headers = {**_HEADERS, "Host": url.netloc.decode("ascii")}
            client = await self._opened_client()
            request = client.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": host})
            try:
                response = await client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
                continue
            return await _content(url, response, room)
        raise failure or httpx.ConnectError("no address")

    async def _opened_client(self) -> httpx.AsyncClient:
        async with self._opening:
            if self._client is None:
                context = await asyncio.to_thread(httpx.create_ssl_context, trust_env=False)
                # No connection is used twice: it was verified for one name only. No proxy: it would resolve names.
                self._client = httpx.AsyncClient(
                    verify=context,
                    trust_env=False,
                    follow_redirects=False,
                    timeout=_SECONDS,
                    limits=httpx.Limits(max_keepalive_connections=0),
                )
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _addresses(self, scheme: str, host: str, port: int) -> list[str]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise MediaRefused(f"the host {host} is not known") from None
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if not all(self._hosts.allows_address(scheme, host, port, address) for address in addresses):
            raise MediaRefused(
                f"the host {host} has an address that is not public: name such an address itself in --media-url-hosts"
            )
        return addresses


class MediaRefused(Exception):
    """The reason, without the field."""


class _Room:
    """The bytes that a request may still bring."""

    def __init__(self, limit: int, held: HeldBody | None) -> None:
        self._left = limit
        self._limit = limit
        self._held = held

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise MediaRefused(f"the files of the request have more than {self._limit} bytes (server.max_body_bytes)")
        if self._held is not None:
            self._held.grow(count)


def _is_incomplete(prompt: Prompt) -> bool:
    return isinstance(prompt, ChatPrompt) and any(file.url for file in prompt.media)


def _parsed(url: str) -> httpx.URL:
    try:
        found = httpx.URL(url)
        found.raw_host.decode("ascii")
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise MediaRefused("the URL is not valid") from None
    if found.scheme not in ("http", "https"):
        raise MediaRefused(f"a redirect to a {found.scheme}: URL is not followed")
    if not found.host:
        raise MediaRefused("the URL has no host")
    if found.userinfo:
        raise MediaRefused("a URL with a user name is not allowed")
    return found


async def _content(url: httpx.URL, response: httpx.Response, room: _Room) -> bytes | httpx.URL:
    try:
        if response.has_redirect_location:
            return url.join(response.headers.get("location", ""))
        if response.status_code != 200:
            raise MediaRefused(f"the host answered with HTTP {response.status_code}")
        pieces: list[bytes] = []
        size = 0
        async for piece in response.aiter_raw():
            size += len(piece)
            if size > LARGEST_FILE:
                raise MediaRefused(f"the file is larger than {LARGEST_FILE >> 20} MiB")
            room.take(len(piece))
            pieces.append(piece)
        return b"".join(pieces)
    except httpx.InvalidURL:
        raise MediaRefused("the redirect has no valid URL") from None
    finally:
        await response.aclose()


def read_below(folder: Path, path: str) -> bytes:
    """A file below a folder. Links are followed within it. Raises `MediaRefused`.

    The real path is opened step by step without following links, so that a link that appears meanwhile changes
    nothing.
    """
    parts = path_parts(path)
    if parts is None:
        raise MediaRefused("the path is not allowed: it must be below --media-path, without '..'")
    try:
        top = os.path.realpath(folder)
        real = os.path.realpath(os.path.join(top, *parts))
        within = os.path.relpath(real, top)
        if os.path.commonpath([top, real]) != top or within == ".":
            raise MediaRefused("the path is not allowed: it leads out of --media-path")
        return _opened_and_read(top, within.split(os.sep))
    except (OSError, ValueError):
        raise MediaRefused("the file does not exist, or cannot be read") from None


def path_parts(path: str) -> list[str] | None:
    """The names of a path below a folder. None: it is not allowed."""
    if len(path) > _LONGEST_PATH or any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return None
    return parts


def _opened_and_read(top: str, names: list[str]) -> bytes:
    at = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        # Not blocking: a pipe without a writer must not hold a thread.
        file = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    with open(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise MediaRefused("it is not a regular file")
        content = opened.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise MediaRefused(f"the file is larger than {LARGEST_FILE >> 20} MiB")
    return content

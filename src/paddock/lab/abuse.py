"""Are honest clients served while others do their worst?  `python -m paddock.lab.abuse --seconds 60`

First a calm while, then as long a storm: slow senders, clients that do not read, huge bodies, deep and wide JSON,
schemas of a giant's, and a thousand connections that are opened and left. Every honest request must be answered, every
bad one refused, the server's memory and open files stay bounded, and no process may die. The exit status tells.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from paddock.lab.client import CHAT, Address, ChatFailed, stream
from paddock.lab.servers import Entrant, running

_PATIENCE = {"header_timeout": 3, "body_timeout": 3, "write_timeout": 5}
"""Shorter than usual, so that an end comes to all while we look."""
_GROWTH = 256
"""MiB that the gateway may be larger in the storm: a few bodies of 32 MiB at once are allowed."""
_OTHER_FILES = 256
_REFUSALS = frozenset({"400", "404", "408", "413", "414", "429", "431", "503", "closed"})
_MESSAGE = '"messages": [{"role": "user", "content": "x"}]'
_Abuse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, str]]


@dataclass
class Abuse:
    address: Address
    server: psutil.Process
    connections: int
    clients: int
    first_tokens: dict[str, list[float]] = field(default_factory=lambda: {"calm": [], "storm": []})
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=lambda: {"calm": 0.0, "storm": 0.0})
    most_files: int = 0
    phase: str = "calm"

    async def run(self, seconds: float) -> None:
        await stream(self.address, self._honest())  # the model is there before anything is compared
        workers = self._workers()
        await self._for_a_while(seconds / 2, [])
        self.phase = "storm"
        bad = [
            self._slow_head, self._slow_body, self._never_reads, self._huge_body, self._wide_body, self._deep_body,
            self._giant_schema, self._endless_header,
        ]  # fmt: skip
        abusers = [self._again(one) for one in bad for _ in range(2)]
        await self._for_a_while(seconds / 2, [*abusers, *(self._hold() for _ in range(self.connections))])
        await stream(self.address, self._honest())
        if self._workers() != workers:
            self._violate(f"the workers were {workers} and are {self._workers()}")
        self._judge()

    async def _for_a_while(self, seconds: float, others: list[Coroutine[Any, Any, None]]) -> None:
        tasks = [asyncio.ensure_future(work) for work in (self._watch(), *others)]
        tasks += [asyncio.ensure_future(self._client()) for _ in range(self.clients)]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._violate(f"the run itself failed: {outcome!r}")

    # ── honest ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _client(self) -> None:
        while True:
            try:
                answer = await stream(self.address, self._honest())
                self.first_tokens[self.phase].append(answer.first_token)
            except (ChatFailed, OSError) as failure:
                self._violate(f"an honest request failed: {failure}")
            await asyncio.sleep(0.05)

    @staticmethod
    def _honest() -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 8, "seed": 1}

    # ── not so ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _again(self, abuse: _Abuse) -> None:
        name = abuse.__name__.strip("_").replace("_", " ")
        while True:
            try:
                reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
            except OSError as error:
                self._violate(f"no connection: {error}")
                return
            try:
                outcome = await abuse(reader, writer)
            except OSError:
                outcome = "closed"
            finally:
                writer.transport.abort()
            self.outcomes[f"{name}: {outcome}"] += 1
            if outcome not in _REFUSALS:
                self._violate(f"{name} was answered with {outcome}")
            await asyncio.sleep(0.2)

    async def _slow_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        writer.write(b"GET /health HTTP/1.1\r\nX-Patience: ")
        return await _sending(reader, writer, b"x", 0.2)

    async def _slow_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        writer.write(_head(1_000_000))
        return await _sending(reader, writer, b"[", 0.2)

    async def _never_reads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Asks for the longest answer there is, again and again, and lets it lie."""
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        try:
            await asyncio.wait_for(writer.drain(), _PATIENCE["write_timeout"] * 2)
            await asyncio.sleep(_PATIENCE["write_timeout"])
        except TimeoutError:
            pass
        return "closed"

    async def _huge_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        writer.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode())
        return await _sending(reader, writer, b"10000\r\n" + b"x" * 65536 + b"\r\n")

    async def _wide_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        return await _asked(reader, writer, b'{"messages": [' + b"1," * 1_000_000 + b"1]}")

    async def _deep_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        return await _asked(reader, writer, b'{"messages": ' + b"[" * 2_000_000)

    async def _giant_schema(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        patterns = {f"^{number:04}.*": {"type": "string"} for number in range(1500)}
        body = f'{{{_MESSAGE}, "json_schema": {json.dumps({"type": "object", "patternProperties": patterns})}}}'
        return await _asked(reader, writer, body.encode())

    async def _endless_header(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        writer.write(b"GET /health HTTP/1.1\r\nX: ")
        return await _sending(reader, writer, b"x" * 65536)

    async def _hold(self) -> None:
        """One of many connections that are opened and left, and opened again when the server has had enough."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
                self.outcomes["held connections"] += 1
                await reader.read()
                writer.close()
            except OSError:
                self.outcomes["held connections: reset"] += 1
            await asyncio.sleep(0.5)

    # ── judged ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        while True:
            self.memory[self.phase] = max(self.memory[self.phase], self.server.memory_info().rss / 2**20)
            self.most_files = max(self.most_files, self.server.num_fds())
            await asyncio.sleep(0.2)

    def _workers(self) -> list[int]:
        return sorted(child.pid for child in self.server.children())

    def _judge(self) -> None:
        for phase, times in self.first_tokens.items():
            if not times:
                self._violate(f"nobody was served in the {phase}")
                continue
            middle, worst = statistics.median(times) * 1000, max(times) * 1000
            print(f"{phase}: {len(times)} answers, first token after {middle:.0f} ms (median), {worst:.0f} ms at worst")
        calm, storm = self.memory["calm"], self.memory["storm"]
        print(
            f"gateway: {calm:.0f} MiB in the calm, {storm:.0f} MiB in the storm, {self.most_files} open files at most"
        )
        if storm > calm + _GROWTH:
            self._violate(f"the gateway grew from {calm:.0f} to {storm:.0f} MiB")
        if self.most_files > self.connections + _OTHER_FILES:
            self._violate(f"{self.most_files} files were open")

    def _violate(self, what: str) -> None:
        self.violations.append(what)
        print(f"VIOLATION {what}", file=sys.stderr, flush=True)


def _head(length: int) -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> str:
    writer.write(_head(len(body)) + body)
    return await _status(reader)


async def _sending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, pause: float = 0.0) -> str:
    """The same again and again, until there is an answer."""
    answer = asyncio.ensure_future(_status(reader))
    try:
        while not answer.done() and not writer.is_closing():
            writer.write(data)
            await writer.drain()
            await asyncio.wait({answer}, timeout=pause)
        return await answer
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


async def _status(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    return line.split()[1].decode() if line else "closed"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", default="fake:delay=0.002", show_default=True, metavar="FILE", help="A GGUF file, or fake:.")
@click.option("--seconds", default=60.0, show_default=True, help="Half of them calm.")
@click.option("--connections", default=1000, show_default=True, help="Opened and left.")
@click.option("--clients", default=4, show_default=True, help="Honest ones.")
def main(model: str, seconds: float, connections: int, clients: int) -> None:
    """Serve honest clients, at first alone and then among those who do their worst."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, connections + 1024), hard))
    with tempfile.TemporaryDirectory(prefix="paddock-abuse-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"server": {**_PATIENCE, "max_connections": connections}}))
        command = f"{{python}} -m paddock serve --config {config} --port {{port}} -m {model}"
        with running(Entrant("paddock", command, paddock=True), {}, 60) as server:
            assert server.process is not None, "it was started here"
            abuse = Abuse(server.address, server.process, connections, clients)
            asyncio.run(abuse.run(seconds))
    for outcome, count in sorted(abuse.outcomes.items()):
        print(f"{count:7} {outcome}")
    print(f"{len(abuse.violations):7} violations")
    sys.exit(1 if abuse.violations else 0)


if __name__ == "__main__":
    main()

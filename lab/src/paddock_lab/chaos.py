"""Does the server keep its promises while everything around it goes wrong?  `python -m paddock_lab.chaos`

Clients ask three models of which two fit. Meanwhile workers are killed, aborted and stopped at random, and the
configuration is rewritten and reloaded, sometimes broken. Every request must end in an answer or a clear error; the
server's memory and file descriptors must not grow; and in the end every model must answer. The exit status tells.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from paddock_lab.client import CHAT, Address, ChatFailed, post, stream
from paddock_lab.servers import Entrant, running

_MODELS = ("one", "two", "three")
_WORDS = ("horse", "meadow", "river", "stone", "winter", "bridge")
_SIGNALS = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGSTOP)
_SILENCE = 5
"""Seconds after which a worker that says nothing is given up, so that stopped ones are found while we look."""
_GROWTH = 24
"""MiB that a server may be larger at the end than in the middle: an allocator has its moods."""
_MORE_FILES = 12


@dataclass
class Chaos:
    address: Address
    server: psutil.Process
    config: Path
    model: str
    limit: float
    chance: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    samples: list[tuple[float, int]] = field(default_factory=list)
    """The server's resident MiB and its open files, from time to time."""
    done: bool = False

    # ── those who ask ────────────────────────────────────────────────────────────────────────────────────────────────

    async def client(self) -> None:
        while not self.done:
            what = self.chance.choice([self._streams, self._waits, self._counts, self._leaves])
            try:
                async with asyncio.timeout(self.limit):
                    self.outcomes[await what()] += 1
            except TimeoutError:
                self._violate(f"{what.__name__.strip('_')}: nothing within {self.limit:g} s")
            except ChatFailed as failure:
                self._judge(str(failure))
            except OSError as failure:
                self._violate(f"the gateway did not take a connection: {failure}")
            await asyncio.sleep(self.chance.uniform(0, 0.3))

    async def _streams(self) -> str:
        await stream(self.address, self._body())
        return "streamed"

    async def _waits(self) -> str:
        await post(self.address, CHAT, self._body())
        return "answered"

    async def _counts(self) -> str:
        await post(self.address, "/tokenize", {"model": self.chance.choice(_MODELS), "content": "a horse"})
        return "counted"

    async def _leaves(self) -> str:
        try:
            async with asyncio.timeout(self.chance.uniform(0.05, 1)):
                await stream(self.address, self._body())
        except TimeoutError:
            return "left"
        return "streamed"

    def _body(self) -> dict[str, Any]:
        text = " ".join(self.chance.choices(_WORDS, k=self.chance.randint(1, 40)))
        return {
            "model": self.chance.choice(_MODELS),
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.chance.randint(1, 40),
        }

    def _judge(self, failure: str) -> None:
        """An error is clear if it is one of ours, and not of the kind that tells of a bug."""
        begin = failure.find('{"error"')
        try:
            code = json.loads(failure[begin:])["error"]["code"] if begin >= 0 else None
        except (ValueError, KeyError):
            code = None
        if code is None or code == "internal_error":
            self._violate(f"no clear error: {failure[:300]}")
        else:
            self.outcomes[f"error {code}"] += 1

    # ── those who spoil it ───────────────────────────────────────────────────────────────────────────────────────────

    async def monkey(self) -> None:
        stopped: list[psutil.Process] = []
        while not self.done:
            await asyncio.sleep(self.chance.uniform(0.5, 3))
            workers = [child for child in self.server.children() if _is_worker(child)]
            if not workers:
                continue
            sign = self.chance.choice(_SIGNALS)
            victim = self.chance.choice(workers)
            _send(victim, sign)
            self.outcomes[f"sent {sign.name}"] += 1
            if sign is signal.SIGSTOP and self.chance.random() < 0.5:
                stopped.append(victim)
            elif stopped and self.chance.random() < 0.5:
                _send(stopped.pop(), signal.SIGCONT)
        for process in stopped:
            _send(process, signal.SIGCONT)

    async def operator(self) -> None:
        while not self.done:
            await asyncio.sleep(self.chance.uniform(2, 5))
            broken = self.chance.random() < 0.3
            self.config.write_text('{"model_manager": {"nonsense": 1}}' if broken else self.settings())
            try:
                async with asyncio.timeout(self.limit):
                    await post(self.address, "/admin/reload", {})
            except ChatFailed as failure:
                if not broken or "HTTP/1.1 400" not in str(failure):
                    self._violate(f"a reload failed: {failure}")
                self.outcomes["reload refused"] += 1
            except (TimeoutError, OSError) as failure:
                self._violate(f"a reload did not end: {failure!r}")
            else:
                self.outcomes["reloaded"] += 1
                if broken:
                    self._violate("a broken configuration was taken")

    def settings(self) -> str:
        """Each time one model is a little different."""
        models = {name: {"path": self.model, "n_ctx": 1024} for name in _MODELS}
        models[self.chance.choice(_MODELS)]["n_ctx"] = 256 * self.chance.randint(2, 6)
        manager = {
            "models": models,
            "models_max": 2,
            "idle_timeout": 4,
            "min_residence": 2,
            "silence_timeout": _SILENCE,
            "n_threads": 1,
            "parallel": 4,
            "cache_ram": 64,
        }
        return json.dumps({"model_manager": manager})

    async def watch(self) -> None:
        while not self.done:
            await asyncio.sleep(1)
            self.samples.append((self.server.memory_info().rss / 2**20, self.server.num_fds()))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, seconds: float, clients: int) -> None:
        work: list[Callable[[], Coroutine[Any, Any, None]]] = [self.monkey, self.operator, self.watch]
        async with asyncio.TaskGroup() as group:
            for task in [*work, *[self.client] * clients]:
                group.create_task(task())
            await asyncio.sleep(seconds)
            self.done = True
        await self._recover()
        self._weigh()

    async def _recover(self) -> None:
        self.config.write_text(self.settings())
        await post(self.address, "/admin/reload", {})
        deadline = time.monotonic() + self.limit
        for name in _MODELS:
            while True:
                try:
                    await post(self.address, CHAT, {**self._body(), "model": name})
                    break
                except ChatFailed as failure:  # one that crashed again and again is left alone for a while
                    if time.monotonic() > deadline:
                        self._violate(f"{name} does not answer in the end: {failure}")
                        break
                    await asyncio.sleep(1)

    def _weigh(self) -> None:
        """The last fifth of the time against the middle: what comes with the first requests is no growth."""
        fifth = max(1, len(self.samples) // 5)
        middle, last = self.samples[2 * fifth : 3 * fifth], self.samples[-fifth:]
        if len(self.samples) < 10:
            return
        for what, index, allowed in (("MiB", 0, _GROWTH), ("open files", 1, _MORE_FILES)):
            before, after = max(sample[index] for sample in middle), max(sample[index] for sample in last)
            print(f"the server had {before:.0f} {what} in the middle and {after:.0f} at the end")
            if after > before + allowed:
                self._violate(f"the server grew from {before:.0f} to {after:.0f} {what}")

    def _violate(self, what: str) -> None:
        self.violations.append(what)
        print(f"VIOLATION {what}", file=sys.stderr, flush=True)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "paddock.worker" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, sign: signal.Signals) -> None:
    try:
        process.send_signal(sign)
    except psutil.NoSuchProcess:
        pass  # gone in the meantime


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", required=True, metavar="FILE", help="A GGUF file, served under three names; or fake:.")
@click.option("--seconds", default=600.0, show_default=True)
@click.option("--clients", default=8, show_default=True)
@click.option("--limit", default=60.0, show_default=True, metavar="SECONDS", help="In which every request must end.")
@click.option("--seed", default=1, show_default=True)
def main(model: str, seconds: float, clients: int, limit: float, seed: int) -> None:
    """Serve a model under three names while workers are killed and the configuration is rewritten."""
    with tempfile.TemporaryDirectory(prefix="paddock-chaos-") as folder:
        config = Path(folder) / "config.json"
        path = model if model.startswith("fake:") else str(Path(model).absolute())
        chaos = Chaos(Address("", 0), psutil.Process(), config, path, limit, random.Random(seed))
        config.write_text(chaos.settings())
        command = f"{{python}} -m paddock serve --config {config} --port {{port}}"
        with running(Entrant("paddock", command), {}, 60) as server:
            assert server.process is not None, "it was started here"
            chaos.address, chaos.server = server.address, server.process
            asyncio.run(chaos.run(seconds, clients))
    for outcome, count in sorted(chaos.outcomes.items()):
        print(f"{count:7} {outcome}")
    print(f"{len(chaos.violations):7} violations")
    sys.exit(1 if chaos.violations else 0)


if __name__ == "__main__":
    main()

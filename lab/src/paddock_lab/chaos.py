"""Does the server keep its promises while workers crash and settings change?  `python -m paddock_lab.chaos`

Clients send requests to three models, two of which fit into memory. Meanwhile workers are killed, aborted and stopped
at random, and the configuration is rewritten, sometimes with an error, and reloaded. Every request must end in an
answer or a clear error, the server's memory and file descriptors must not grow, and in the end every model must answer.
Otherwise the exit status is 1.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from paddock_lab.client import CHAT, ChatFailed, post, stream
from paddock_lab.stress import Outcomes, Paddock, paddock
from paddock_lab.words import user

_MODELS = ("one", "two", "three")
_WORDS = ("horse", "meadow", "river", "stone", "winter", "bridge")
_SIGNALS = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGSTOP)
_SILENCE = 5
"""`silence_timeout` in seconds: short, so that stopped workers are found during the run."""
_GROWTH = 24
"""MiB that the server may grow between the middle and the end of the run: the allocator adds some noise."""
_MORE_FILES = 12


def settings_for(model: str, chance: random.Random) -> dict[str, Any]:
    """Three models with the same file. One of them has a random context size."""
    models = {name: {"path": model, "n_ctx": 1024} for name in _MODELS}
    models[chance.choice(_MODELS)]["n_ctx"] = 256 * chance.randint(2, 6)
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
    return {"model_manager": manager}


@dataclass
class Chaos:
    server: Paddock
    model: str
    limit: float
    """Seconds in which every request must end."""
    chance: random.Random
    outcomes: Outcomes = field(default_factory=Outcomes)
    samples: list[tuple[float, int]] = field(default_factory=list)
    """The server's resident MiB and its open files, once a second."""
    done: bool = False

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def client(self) -> None:
        while not self.done:
            send = self.chance.choice([self._stream, self._post, self._tokenize, self._disconnect])
            try:
                async with asyncio.timeout(self.limit):
                    self.outcomes.counts[await send()] += 1
            except TimeoutError:
                self.outcomes.violate(f"{send.__name__.strip('_')}: no end within {self.limit:g} s")
            except ChatFailed as failure:
                self._check_error(str(failure))
            except OSError as failure:
                self.outcomes.violate(f"the gateway did not accept a connection: {failure}")
            await asyncio.sleep(self.chance.uniform(0, 0.3))

    async def _stream(self) -> str:
        await stream(self.server.address, self._body())
        return "streamed"

    async def _post(self) -> str:
        await post(self.server.address, CHAT, self._body())
        return "answered"

    async def _tokenize(self) -> str:
        await post(self.server.address, "/tokenize", {"model": self.chance.choice(_MODELS), "content": "a horse"})
        return "tokenized"

    async def _disconnect(self) -> str:
        try:
            async with asyncio.timeout(self.chance.uniform(0.05, 1)):
                await stream(self.server.address, self._body())
        except TimeoutError:
            return "disconnected"
        return "streamed"

    def _body(self) -> dict[str, Any]:
        text = " ".join(self.chance.choices(_WORDS, k=self.chance.randint(1, 40)))
        return {
            "model": self.chance.choice(_MODELS),
            "messages": [user(text)],
            "max_tokens": self.chance.randint(1, 40),
        }

    def _check_error(self, failure: str) -> None:
        """A clear error has a code, and is not the one for bugs."""
        begin = failure.find('{"error"')
        try:
            code = json.loads(failure[begin:])["error"]["code"] if begin >= 0 else None
        except (ValueError, KeyError):
            code = None
        if code is None or code == "internal_error":
            self.outcomes.violate(f"not a clear error: {failure[:300]}")
        else:
            self.outcomes.counts[f"error {code}"] += 1

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def send_signals(self) -> None:
        stopped: list[psutil.Process] = []
        while not self.done:
            await asyncio.sleep(self.chance.uniform(0.5, 3))
            workers = [child for child in self.server.process.children() if _is_worker(child)]
            if not workers:
                continue
            sign = self.chance.choice(_SIGNALS)
            victim = self.chance.choice(workers)
            _send(victim, sign)
            self.outcomes.counts[f"sent {sign.name}"] += 1
            if sign is signal.SIGSTOP and self.chance.random() < 0.5:
                stopped.append(victim)
            elif stopped and self.chance.random() < 0.5:
                _send(stopped.pop(), signal.SIGCONT)
        for process in stopped:
            _send(process, signal.SIGCONT)

    async def reload(self) -> None:
        while not self.done:
            await asyncio.sleep(self.chance.uniform(2, 5))
            broken = self.chance.random() < 0.3
            self._write_settings({"model_manager": {"nonsense": 1}} if broken else None)
            try:
                async with asyncio.timeout(self.limit):
                    await post(self.server.address, "/admin/reload", {})
            except ChatFailed as failure:
                if not broken or failure.status != 400:
                    self.outcomes.violate(f"a reload failed: {failure}")
                self.outcomes.counts["reload refused"] += 1
            except (TimeoutError, OSError) as failure:
                self.outcomes.violate(f"a reload did not end: {failure!r}")
            else:
                self.outcomes.counts["reloaded"] += 1
                if broken:
                    self.outcomes.violate("a broken configuration was accepted")

    def _write_settings(self, settings: dict[str, Any] | None = None) -> None:
        self.server.config.write_text(json.dumps(settings or settings_for(self.model, self.chance)))

    async def watch(self) -> None:
        while not self.done:
            await asyncio.sleep(1)
            process = self.server.process
            self.samples.append((process.memory_info().rss / 2**20, process.num_fds()))

    # ── run ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, seconds: float, clients: int) -> None:
        work: list[Callable[[], Coroutine[Any, Any, None]]] = [self.send_signals, self.reload, self.watch]
        async with asyncio.TaskGroup() as group:
            for task in [*work, *[self.client] * clients]:
                group.create_task(task())
            await asyncio.sleep(seconds)
            self.done = True
        await self._recover()
        self._check_growth()

    async def _recover(self) -> None:
        self._write_settings()
        await post(self.server.address, "/admin/reload", {})
        deadline = time.monotonic() + self.limit
        for name in _MODELS:
            while True:
                try:
                    await post(self.server.address, CHAT, {**self._body(), "model": name})
                    break
                except ChatFailed as failure:  # a model that crashed repeatedly backs off for a while
                    if time.monotonic() > deadline:
                        self.outcomes.violate(f"{name} does not answer after the run: {failure}")
                        break
                    await asyncio.sleep(1)

    def _check_growth(self) -> None:
        """Compare the last fifth of the time with the middle one: the first requests always allocate some memory."""
        fifth = max(1, len(self.samples) // 5)
        middle, last = self.samples[2 * fifth : 3 * fifth], self.samples[-fifth:]
        if len(self.samples) < 10:
            return
        for what, index, allowed in (("MiB", 0, _GROWTH), ("open files", 1, _MORE_FILES)):
            before, after = max(sample[index] for sample in middle), max(sample[index] for sample in last)
            print(f"the server had {before:.0f} {what} in the middle and {after:.0f} at the end")
            if after > before + allowed:
                self.outcomes.violate(f"the server grew from {before:.0f} to {after:.0f} {what}")


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "paddock.worker" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, sign: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(sign)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", required=True, metavar="FILE", help="A GGUF file, served under three names; or fake:.")
@click.option("--seconds", default=600.0, show_default=True)
@click.option("--clients", default=8, show_default=True)
@click.option("--limit", default=60.0, show_default=True, metavar="SECONDS", help="In which every request must end.")
@click.option("--seed", default=1, show_default=True)
def main(model: str, seconds: float, clients: int, limit: float, seed: int) -> None:
    """Serve a model under three names while workers are killed and the configuration is rewritten."""
    path, chance = model if model.startswith("fake:") else str(Path(model).absolute()), random.Random(seed)
    with paddock(settings_for(path, chance)) as server:
        chaos = Chaos(server, path, limit, chance)
        asyncio.run(chaos.run(seconds, clients))
    chaos.outcomes.exit()


if __name__ == "__main__":
    main()

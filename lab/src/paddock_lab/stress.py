"""What `chaos` and `abuse` share: a Paddock with its own configuration, counted outcomes, and an exit status."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psutil

from paddock_lab.client import Address
from paddock_lab.servers import Entrant, running


@dataclass(frozen=True)
class Paddock:
    """A Paddock that was started here."""

    address: Address
    process: psutil.Process
    config: Path


@dataclass
class Outcomes:
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    """Broken promises. Any violation makes the exit status 1."""

    def violate(self, what: str) -> None:
        self.violations.append(what)
        print(f"VIOLATION {what}", file=sys.stderr, flush=True)

    def exit(self) -> NoReturn:
        """Print all outcomes and end the program."""
        for outcome, count in sorted(self.counts.items()):
            print(f"{count:7} {outcome}")
        for violation in self.violations:
            print(f"VIOLATION {violation}")
        print(f"{len(self.violations):7} violations")
        sys.exit(1 if self.violations else 0)


@contextmanager
def paddock(settings: Mapping[str, object], flags: str = "", api_key: str = "") -> Iterator[Paddock]:
    with tempfile.TemporaryDirectory(prefix="paddock-lab-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(settings))
        command = f"{{python}} -m paddock serve --config {config} --port {{port}} {flags}"
        with running(Entrant("paddock", command), {}, 60, api_key) as server:
            assert server.process is not None, "it was started here"
            yield Paddock(server.address, server.process, config)

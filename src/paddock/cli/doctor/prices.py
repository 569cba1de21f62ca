"""What computing and copying prefixes cost on a running server, from its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paddock.cli.doctor.finding import Finding

if TYPE_CHECKING:
    from paddock.config import ServerSettings

_SAMPLE = re.compile(r"^(paddock_[a-z_]+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_PREFILL, _SIZE = "paddock_prefill_token_seconds", "paddock_prefix_token_bytes"
_COPY = "paddock_prefix_copy_bytes_per_second"


@dataclass(slots=True)
class WorkerPrices:
    """The measured prices of one worker; 0 where nothing was measured yet."""

    prefill: float = 0.0
    """Seconds to compute a prompt token."""
    token_bytes: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    """Bytes per second, by kind of copy."""

    def token(self, *copies: str) -> float:
        """Seconds to copy a token by these copies, one after another; 0 if one of them is not known."""
        rates = [self.rates.get(copy, 0.0) for copy in copies]
        return sum(self.token_bytes / rate for rate in rates) if all(rates) else 0.0


def read_prices(metrics: str) -> dict[str, WorkerPrices]:
    """The prices of each worker in the text of `/metrics`."""
    found: dict[str, WorkerPrices] = {}
    for name, labels, value in _SAMPLE.findall(metrics):
        if name not in (_PREFILL, _SIZE, _COPY):
            continue
        label = dict(_LABEL.findall(labels))
        replica = label.get("replica", "0")
        prices = found.setdefault(label["model_id"] + (f" {replica}" if replica != "0" else ""), WorkerPrices())
        if name == _PREFILL:
            prices.prefill = float(value)
        elif name == _SIZE:
            prices.token_bytes = float(value)
        else:
            prices.rates[label["copy"]] = float(value)
    return found


def check_prices(name: str, prices: WorkerPrices) -> Iterator[Finding]:
    if not prices.prefill:
        return
    text = f"{name}: computing a prompt token takes {_time(prices.prefill)}"
    known = [
        f"{verb} {_time(prices.token(copy))} ({prices.rates[copy] / 1e9:.2g} GB/s)"
        for copy, verb in (
            ("save", "copying it to host memory"),
            ("restore", "restoring it"),
            ("disk_write", "writing it to disk"),
            ("disk_read", "reading it from disk"),
        )
        if prices.token(copy)
    ]
    yield Finding("ok", "prices", ", ".join([text, *known]))
    if prices.token("restore") > prices.prefill:
        text = f"{name}: restoring a prefix from host memory is slower than computing it, so it is computed"
        yield Finding("warning", "prices", text, "--cache-ram 0 saves the memory; prefixes in cells are still reused")
    elif prices.token("disk_read", "restore") > prices.prefill:
        text = f"{name}: disk does not pay: reading a prefix is slower than computing it, so it is computed"
        yield Finding("warning", "prices", text, "leave out --cache-disk for this model, or use a faster disk")


def examine_prices(settings: ServerSettings) -> Iterator[Finding]:
    """Of the server that runs with these settings, if one does and its metrics can be read."""
    import click
    import httpx

    from paddock.cli.chat.server import Server
    from paddock.hosts import address_url, reachable

    if not settings.port or not settings.metrics:
        return
    url = address_url(reachable(settings.hosts[0]), settings.port, tls=settings.ssl_cert_file is not None)
    try:
        server = Server(url, next(iter(settings.api_keys), None), settings.api_prefix, settings.ssl_cert_file)
        metrics = server.metrics()
    except (click.ClickException, httpx.HTTPError):
        return
    for name, prices in read_prices(metrics).items():
        yield from check_prices(name, prices)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"

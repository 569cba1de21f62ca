"""Who can reach the server, from where?"""

from __future__ import annotations

from collections.abc import Iterable

from paddock.cli.doctor.finding import Finding
from paddock.hosts import is_loopback

_LEAST_KEY = 16


def check_exposure(host: str, *, keys: bool, tls: bool) -> Finding:
    about = "exposure"
    if is_loopback(host):
        return Finding("ok", about, "only this machine can reach it")
    if not keys:
        return Finding(
            "warning",
            about,
            f"everybody who can reach {host} may ask, unload and reload: there is no key",
            "set an API key (server.api_key_file), or server.host to 127.0.0.1 behind a proxy",
        )
    if not tls:
        return Finding(
            "warning",
            about,
            "keys and conversations cross the network in clear text",
            "set ssl_cert_file and ssl_key_file, or have a proxy on this machine do it (deploy/nginx)",
        )
    return Finding("ok", about, "others reach it with a key, over TLS")


def check_root(user_id: int) -> Finding | None:
    if user_id != 0:
        return None
    return Finding(
        "warning",
        "user",
        "this is root: what breaks out of a worker can do anything on this machine",
        "run it as a user of its own: `paddock service install --system` makes one, and the image has one",
    )


def check_metrics(host: str, *, metrics: bool, metrics_key: bool) -> Finding | None:
    if is_loopback(host) or not metrics or metrics_key:
        return None
    return Finding(
        "warning",
        "metrics",
        f"everybody who can reach {host} may read /metrics, which tells the names of models and keys and how much "
        "each is used",
        "set server.metrics_key to true, close /metrics at the proxy, or turn it off with --no-metrics",
    )


def check_keys(keys: Iterable[str]) -> Finding | None:
    """`keys` as they are written. Those that are told by a hash cannot be judged."""
    lengths = sorted(map(len, keys))
    short = [length for length in lengths if length < _LEAST_KEY]
    if not short:
        return None
    return Finding(
        "warning",
        "keys",
        f"{len(short)} of {len(lengths)} API keys {'is' if len(short) == 1 else 'are'} shorter than {_LEAST_KEY} "
        f"characters, the shortest has {short[0]}: it can be guessed",
        "`paddock keys new NAME` makes one that cannot be, and so does `openssl rand -hex 32`",
    )


def check_cors(origins: list[str], *, keys: bool) -> Finding:
    if "*" in origins and not keys:
        return Finding(
            "warning",
            "cors",
            "any page that a browser here opens may ask",
            "name the pages' origins in cors_origins, or set an API key",
        )
    return Finding(
        "ok",
        "cors",
        f"browser pages that may ask: {', '.join(origins) or 'none but its own'}",
        "a page of another origin is refused by the browser until cors_origins names it",
    )

"""Who can reach the server, from where?"""

from __future__ import annotations

from paddock.cli.doctor.finding import Finding
from paddock.hosts import is_loopback


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

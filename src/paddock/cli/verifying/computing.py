"""Computes the answer of a receipt again, on a server that runs or is started for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from paddock.cli.chat.server import Server, ServerUnreachable, configured_server, started_server
from paddock.receipts import Comparison, Receipt, compare

# Of `sampling`: they have another name or form in a request, which has them if they are not the usual ones.
_NOT_SENT = frozenset({"max_tokens", "logit_bias"})
# Options of the engine and how `paddock serve` takes them.
_FLAGS = {
    "n_batch": "-b",
    "n_ubatch": "-ub",
    "n_threads": "-t",
    "n_threads_batch": "-tb",
    "parallel": "-np",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "flash_attn": "-fa",
}


class NotComputed(Exception):
    """A server did not compute an answer."""


def computed(server: Server, receipt: Receipt, model_name: str | None) -> Comparison:
    """Raises `NotComputed`, or `ServerUnreachable`."""
    endpoint = receipt.request.endpoint
    if not endpoint.startswith("/") or endpoint.startswith("//"):
        raise NotComputed(f"request.endpoint is no path: {endpoint[:80]!r}")
    # The sampling parameters explicitly: this server may have other defaults.
    sampling = {name: value for name, value in receipt.sampling.items() if name not in _NOT_SENT}
    body = sampling | receipt.request.body | {"receipt": True, "deterministic": True, "stream": False}
    if model_name is not None:
        body["model"] = model_name
    try:
        reply = server.request("POST", endpoint, body)
        return compare(receipt, msgspec.convert(reply["receipt"], Receipt))
    except ServerUnreachable:
        raise
    except click.ClickException as error:
        raise NotComputed(error.message) from None
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise NotComputed(f"the server's reply has no receipt ({error}): is it another version of Paddock?") from None


@contextmanager
def computing_server(
    url: str | None, key: str | None, model: Path | None, options: Mapping[str, Any]
) -> Iterator[Server]:
    found = configured_server(url, key)
    if model is None:
        if not found.is_running():
            hint = (
                "" if url is not None else ": start one, give --model FILE, or check the hashes alone with --sample 0"
            )
            raise click.ClickException(f"no server answers at {found.url}{hint}")
        yield found
        return
    with started_server(["-m", str(model), *_serve_options(options)], found.key) as server:
        yield server


def _serve_options(options: Mapping[str, Any]) -> list[str]:
    """Start the server as the one that wrote the receipts, where they all say the same."""
    found: list[str] = []
    for name, flag in _FLAGS.items():
        if isinstance(value := options.get(name), str | int) and not isinstance(value, bool):
            found += [flag, str(value)]
    parallel, n_ctx, unified = options.get("parallel"), options.get("n_ctx"), options.get("kv_unified")
    if isinstance(n_ctx, int) and isinstance(parallel, int):
        found += ["-c", str(n_ctx if unified else n_ctx * parallel)]
    if isinstance(unified, bool) and isinstance(parallel, int) and parallel > 1:
        found.append("-kvu" if unified else "-no-kvu")
    layers = options.get("n_gpu_layers")
    if isinstance(layers, int) and layers >= 0:
        found += ["-ngl", str(layers)]
    return [*found, *(["--deterministic"] if options.get("deterministic") else [])]

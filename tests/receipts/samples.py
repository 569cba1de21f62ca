"""Receipts and lines of a batch, made without a server."""

from __future__ import annotations

import copy
from collections.abc import Set
from typing import Any

from paddock.receipts import SigningKey, chain_line, sealed, text_digest, token_digest

_RECEIPT: dict[str, Any] = {
    "format": "paddock-receipt/1",
    "request": {
        "endpoint": "/v1/chat/completions",
        "body": {
            "messages": [{"role": "user", "content": "Wie heißt du? 🐎"}],
            "deterministic": True,
            "seed": 2**63 - 1,
        },
    },
    "identity": {
        "paddock": "0.1.0",
        "engine": "llama.cpp 0.4.1",
        "fingerprint": "fp_0123456789abcdef",
        "sampler_profile": 4,
        "model": [{"name": "a.gguf", "size": 98362432, "sha256": "ab" * 32}],
        "adapters": [{"name": "b.gguf", "size": 5, "sha256": "cd" * 32, "scale": 0.5}],
        "library": {"version": "0.4.1", "commit": "", "build_id": "09", "compiler": "GCC", "features": ["AVX", "FMA"]},
        "cpu": {"machine": "x86_64", "model": "Xeon"},
        "options": {"n_ubatch": 512, "flash_attn": "on", "tensor_split": []},
    },
    "sampling": {"temperature": 0.8, "top_k": 40},
    "seed": {"value": 2**63 - 1, "rule": "request", "job_id": None},
    "reply_sha256": None,
    "line_sha256": None,
    "previous": None,
    "signature": None,
}


def reply(text: str, tokens: list[int], key: SigningKey | None = None) -> dict[str, Any]:
    """A whole reply with its receipt."""
    answer = {
        "prompt_tokens": 7,
        "prompt_sha256": token_digest([1, 2, 3, 4, 5, 6, 7]),
        "seed": 2**63 - 1,
        "tokens": tokens,
        "tokens_sha256": token_digest(tokens),
        "text_sha256": text_digest(text),
        "finish_reason": "stop",
    }
    message = {"role": "assistant", "content": text}
    body = {
        "id": "chatcmpl-1",
        "created": 1794991806,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "timings": {"predicted_ms": 546.1573280008452},
    }
    return body | {"receipt": sealed(body, copy.deepcopy(_RECEIPT) | {"answers": [answer]}, key)}


def batch(
    texts: list[str], key: SigningKey | None = None, *, without: Set[int] = frozenset(), messages: bool = False
) -> list[dict[str, Any]]:
    """The lines of a batch's output, as OpenAI's API or (`messages`) Anthropic's shows them. Those with these numbers,
    from 0, have no receipt.
    """
    lines: list[dict[str, Any]] = []
    previous: str | None = None
    for number, text in enumerate(texts):
        body = reply(text, [number, 5, 9])
        if number in without:
            del body["receipt"]
        response = {"status_code": 200, "request_id": f"req_{number}", "body": body}
        line: dict[str, Any] = {
            "id": f"batch_req_{number}",
            "custom_id": f"line-{number}",
            "response": response,
            "error": None,
        }
        if messages:
            line = {"custom_id": f"line-{number}", "result": {"type": "succeeded", "message": body}}
        if number not in without:
            line, previous = chain_line(line, previous, key)
        lines.append(line)
    return lines

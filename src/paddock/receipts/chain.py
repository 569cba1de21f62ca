"""Receipts in the lines of a batch's output: each refers to the one before, so that no line can be moved or removed."""

from __future__ import annotations

from typing import Any

from paddock.receipts.canonical import digest
from paddock.receipts.receipt import receipt_hash
from paddock.receipts.signing import SigningKey


def sealed(reply: dict[str, Any], receipt: dict[str, Any], key: SigningKey | None) -> dict[str, Any]:
    """The receipt of a whole reply, with the reply's hash, and signed if there is a key."""
    return signed(receipt | {"reply_sha256": digest(without_receipt(reply))}, key)


def signed(receipt: dict[str, Any], key: SigningKey | None) -> dict[str, Any]:
    return receipt | {"signature": None} if key is None else key.sign(receipt)


def chain_line(line: dict[str, Any], previous: str | None, key: SigningKey | None) -> tuple[dict[str, Any], str]:
    """A line of a batch's output whose receipt covers the whole line and refers to the line before; and its hash.

    `previous` is the hash that the line before gave; None for the first line. Raises `ValueError` for a line whose
    reply has no receipt.
    """
    body = reply_of(line)
    if not isinstance(body.get("receipt"), dict):
        raise ValueError("the reply has no receipt")
    receipt = body["receipt"] | {"previous": previous, "line_sha256": digest(_bare(line))}
    receipt = signed(receipt, key)
    response = line["response"] | {"body": body | {"receipt": receipt}}
    return line | {"response": response}, receipt_hash(receipt)


def is_batch_line(line: dict[str, Any]) -> bool:
    return "custom_id" in line and isinstance(line.get("response"), dict)


def reply_of(line: dict[str, Any]) -> dict[str, Any]:
    """The reply in a line of a batch's output, or the line itself, which is a reply. Raises `ValueError`."""
    body = line["response"].get("body") if is_batch_line(line) else line
    if not isinstance(body, dict):
        raise ValueError("response.body must be an object")
    return body


def without_receipt(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name != "receipt"}


def line_digest(line: dict[str, Any]) -> str:
    """The hash of a batch's line without its receipt."""
    return digest(_bare(line))


def _bare(line: dict[str, Any]) -> dict[str, Any]:
    return line | {"response": line["response"] | {"body": without_receipt(reply_of(line))}}

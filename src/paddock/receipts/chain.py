"""Receipts in the lines of a batch's output: each refers to the one before, so that no line can be moved or removed.

A line has the shape of OpenAI's API or of Anthropic's.
"""

from __future__ import annotations

from typing import Any, Final

from paddock.receipts.canonical import digest
from paddock.receipts.receipt import receipt_hash
from paddock.receipts.signing import SigningKey

_REPLIES: Final = (("response", "body"), ("result", "message"))
_WITHOUT_REPLY: Final = frozenset({"errored", "canceled", "expired"})
"""Types of Anthropic's results."""


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
    receipt = body["receipt"] | {"previous": previous, "line_sha256": line_digest(line)}
    receipt = signed(receipt, key)
    return _with_reply(line, body | {"receipt": receipt}), receipt_hash(receipt)


def is_batch_line(line: dict[str, Any]) -> bool:
    return "custom_id" in line and any(outer in line for outer, _ in _REPLIES)


def reply_of(line: dict[str, Any]) -> dict[str, Any]:
    """The reply in a line of a batch's output, or the line itself, which is a reply. A failed line of a batch has an
    empty one. Raises `ValueError`.
    """
    if not is_batch_line(line):
        return line
    outer, inner = _place(line)
    found = line[outer]
    if found is None or (isinstance(found, dict) and found.get("type") in _WITHOUT_REPLY):
        return {}
    body = found.get(inner) if isinstance(found, dict) else None
    if not isinstance(body, dict):
        raise ValueError(f"{outer}.{inner} must be an object")
    return body


def without_receipt(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name != "receipt"}


def line_digest(line: dict[str, Any]) -> str:
    """The hash of a batch's line without its receipt."""
    return digest(_with_reply(line, without_receipt(reply_of(line))))


def _with_reply(line: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    outer, inner = _place(line)
    return line | {outer: line[outer] | {inner: reply}}


def _place(line: dict[str, Any]) -> tuple[str, str]:
    """The fields that lead to the reply of a batch's line."""
    return next((outer, inner) for outer, inner in _REPLIES if outer in line)

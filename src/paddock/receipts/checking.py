"""Checks receipts without a model: hashes, signatures, and the chain of lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paddock.receipts.canonical import digest, parse, text_digest, token_digest
from paddock.receipts.chain import is_batch_line, line_digest, reply_of, without_receipt
from paddock.receipts.receipt import FORMAT, Receipt, receipt_hash
from paddock.receipts.signing import signature_problem


class MalformedLine(ValueError):
    """A line is not JSON, or has not the shape of a reply."""


@dataclass(slots=True)
class CheckedLine:
    number: int
    """From 1."""
    receipt: Receipt | None = None
    custom_id: str | None = None
    problems: list[str] = field(default_factory=list)
    """What shows that the line was changed, moved or made by somebody else."""
    is_signed: bool = False
    continues_chain: bool = False
    """Whether the receipt refers to the one before it in the file, or is the first one."""
    covers_reply: bool = False
    """Whether the receipt has the hash of the whole reply. That of a stream has only those of its texts."""


class Checker:
    """Checks the lines of one file, in their order."""

    def __init__(self, public_key: str | None = None) -> None:
        """With a public key, every receipt must have been signed by it."""
        self._public_key = public_key
        self._number = 0
        self._is_chain = False
        self.last: str | None = None
        """The hash of the last receipt."""

    def check_all(self, lines: Iterable[bytes], last: str | None = None) -> Iterator[CheckedLine]:
        """Check all lines. One of a batch without a receipt has no problem if the chain shows that it never had one: if
        the next receipt refers to the one before it or, after the last receipt, if `last` is the hash of that one.
        Raises `MalformedLine`.
        """
        waiting: list[CheckedLine] = []
        for data in lines:
            checked = self.check(data)
            waiting.append(checked)
            if checked.receipt is not None:
                yield from _decided(waiting, is_complete=checked.continues_chain)
                waiting = []
        yield from _decided(waiting, is_complete=last is not None and last == self.last)

    def check(self, data: bytes) -> CheckedLine:
        """Check the next line. Raises `MalformedLine`, with its number."""
        self._number += 1
        try:
            line = _parsed(data)
            body = reply_of(line)
        except ValueError as error:
            raise MalformedLine(f"line {self._number}: {error}") from None
        custom_id = line.get("custom_id") if is_batch_line(line) else None
        checked = CheckedLine(self._number, custom_id=custom_id if isinstance(custom_id, str) else None)
        given = body.get("receipt")
        if given is None:
            checked.problems.append("it has no receipt, and nothing after it shows that it never had one")
            return checked  # the next line refers to the last receipt before
        checked.receipt = self._read(given)
        checked.problems += self._problems(line, body, given, checked)
        self.last = receipt_hash(given)
        return checked

    def _read(self, given: Any) -> Receipt:
        if isinstance(given, dict) and given.get("format", FORMAT) != FORMAT:
            shown = str(given["format"])[:40]
            raise MalformedLine(f"line {self._number}: the receipt has the format {shown!r}; known is {FORMAT!r}")
        try:
            return msgspec.convert(given, Receipt)
        except msgspec.ValidationError as error:
            raise MalformedLine(f"line {self._number}: receipt: {error}") from None

    def _problems(self, line: dict[str, Any], body: dict[str, Any], given: dict[str, Any], checked: CheckedLine) -> Any:
        receipt = checked.receipt
        assert receipt is not None
        found = list(self._chain_problems(receipt, is_batch=is_batch_line(line)))
        checked.continues_chain = not found
        yield from found
        for number, answer in enumerate(receipt.answers):
            try:
                is_right = token_digest(answer.tokens) == answer.tokens_sha256
            except ValueError:
                is_right = False
            if not is_right:
                yield f"answers[{number}]: tokens_sha256 is not the hash of tokens"
        if receipt.line_sha256 is not None and is_batch_line(line) and line_digest(line) != receipt.line_sha256:
            yield "the line was changed: line_sha256 is not its hash"
        if receipt.reply_sha256 is not None:
            checked.covers_reply = True
            if digest(without_receipt(body)) != receipt.reply_sha256:
                yield "the reply was changed: reply_sha256 is not its hash"
        else:
            yield from _text_problems(body, receipt)
        yield from self._signature_problems(given, checked)

    def _chain_problems(self, receipt: Receipt, *, is_batch: bool) -> Any:
        """Replies that are no lines of a batch may stand in any order."""
        self._is_chain = self._is_chain or is_batch or receipt.line_sha256 is not None
        if is_batch and receipt.line_sha256 is None:
            yield "line_sha256 is null: the receipt is not that of a line in a batch"
        if not is_batch and receipt.line_sha256 is not None:
            yield "the receipt is that of a line in a batch, and the rest of the line is missing"
        expected = self.last if self._is_chain else None
        if receipt.previous == expected:
            return
        if self._number == 1:
            yield "it is the first line, but its receipt refers to one before it: lines were removed or moved"
        elif not self._is_chain:
            yield "its receipt refers to a line before it, but the file is no batch's output"
        else:
            yield "its receipt does not refer to the line before: a line was changed, removed, added or moved"

    def _signature_problems(self, given: dict[str, Any], checked: CheckedLine) -> Any:
        signature = given["signature"]
        if signature is None:
            if self._public_key is not None:
                yield "the receipt is not signed"
            return
        if self._public_key not in (None, signature["public_key"]):
            yield f"the receipt is signed by another key: {signature['public_key'][:64]}"
            return
        if problem := signature_problem(given):
            yield problem
        else:
            checked.is_signed = True


def _decided(lines: list[CheckedLine], *, is_complete: bool) -> list[CheckedLine]:
    """Lines between two receipts. `is_complete`: there was no receipt between these two."""
    for line in lines:
        if is_complete and line.receipt is None and line.custom_id is not None:
            line.problems.clear()
    return lines


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from None
    try:
        line = parse(text)
        digest(line)  # it must have a canonical form
    except ValueError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    if not isinstance(line, dict):
        raise ValueError("it must be a JSON object")
    return line


def _text_problems(body: dict[str, Any], receipt: Receipt) -> Any:
    """For a reply that was put together from a stream. Its text is compared where it is all of what was generated."""
    texts = _texts(body)
    if len(texts) != len(receipt.answers):
        return
    for number, (text, answer) in enumerate(zip(texts, receipt.answers, strict=True)):
        if text is not None and text_digest(text) != answer.text_sha256:
            yield f"the text of answer {number} was changed: text_sha256 is not its hash"


def _texts(body: dict[str, Any]) -> list[str | None]:
    """The texts of a reply. None: a part of what was generated is elsewhere, or not in a text."""
    if isinstance(body.get("content"), str):
        return [body["content"] or None]  # the last event of llama-server's own stream has no text
    found: list[str | None] = []
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message", choice) if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            return []
        text = message.get("content", message.get("text"))
        is_all = isinstance(text, str) and not message.get("reasoning_content") and not message.get("tool_calls")
        found.append(text if is_all else None)
    return found

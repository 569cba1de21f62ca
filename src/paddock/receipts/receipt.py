"""A receipt: what was asked, which model and library answered, and what they answered, as hashes."""

from __future__ import annotations

from typing import Any

import msgspec

from paddock.receipts.canonical import canonical, digest

FORMAT = "paddock-receipt/1"


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The request, complete: it can be sent again to any server that has the model."""

    endpoint: str
    body: dict[str, Any]
    """With the server's defaults for this model, without what does not decide the answer."""


class HashedFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    size: int
    sha256: str


class AppliedAdapter(HashedFile, kw_only=True):
    scale: float


class UsedLibrary(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The libllama that computed the answer."""

    version: str
    commit: str
    """Empty: unknown."""
    build_id: str
    """Differs between any two builds."""
    compiler: str
    features: list[str]
    """Its instruction sets and other options, by ggml's names."""


class UsedCpu(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    machine: str
    model: str


class Identity(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the bytes of the answer depend on, besides the request."""

    paddock: str
    """The version."""
    engine: str
    fingerprint: str
    """`system_fingerprint` of the reply."""
    sampler_profile: int
    model: list[HashedFile]
    """Its files, in the order of their parts."""
    adapters: list[AppliedAdapter]
    library: UsedLibrary | None
    cpu: UsedCpu
    options: dict[str, Any]
    """Of the engine: those that decide bytes."""


class Seed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    value: int
    rule: str
    """`request`: the client chose it. `job_id`: the first eight bytes of the SHA-256 of the job id, big-endian, modulo
    2**31. `random`: the server chose it. Answer number i of one prompt uses the seed plus i.
    """
    job_id: str | None


class Answered(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One answer."""

    prompt_tokens: int
    prompt_sha256: str
    """Of the prompt's token ids, each as 32 bits, little-endian."""
    seed: int
    tokens: list[int]
    tokens_sha256: str
    """In the same way."""
    text_sha256: str
    """Of the generated text in UTF-8, before reasoning and tool calls are separated from it."""
    finish_reason: str


class Signature(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    algorithm: str
    public_key: str
    """32 bytes, in hexadecimal."""
    value: str
    """64 bytes, in hexadecimal: of the receipt's canonical form without `signature`."""


class Receipt(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: str
    request: Asked
    identity: Identity
    sampling: dict[str, Any]
    """All sampling parameters, after the defaults."""
    seed: Seed
    answers: list[Answered]
    """In the order of the prompts, and of the answers to each."""
    reply_sha256: str | None
    """Of the canonical form of the reply without `receipt`. Null in a stream."""
    line_sha256: str | None
    """The same of the whole line of a batch's output."""
    previous: str | None
    """The hash of the receipt in the line before. Null: it is the first one, or not part of a batch."""
    signature: Signature | None


def receipt_hash(receipt: dict[str, Any]) -> str:
    """The hash by which the next receipt refers to this one. It covers everything but the signature."""
    return digest(_unsigned(receipt))


def signed_bytes(receipt: dict[str, Any]) -> bytes:
    """What a signature covers."""
    return canonical(_unsigned(receipt))


def _unsigned(receipt: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in receipt.items() if name != "signature"}

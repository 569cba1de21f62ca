"""Seeds made from job ids, so that a job always uses the same seed."""

from __future__ import annotations

import hashlib


def seed_of(job_id: str) -> int:
    """The first eight bytes of the id's SHA-256, read as one big-endian number, modulo 2**31.

    This is part of the interface (docs/guides/http-api.md), so it must not change. The number fits the seed of every
    server and is never -1, which asks for a random seed.
    """
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big") % 2**31

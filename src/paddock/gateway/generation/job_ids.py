"""A client's name for what it wants done: told back, logged, counted, and what the seed is made of where none is given.

So the same job draws the same numbers wherever and whenever it runs (docs/guides/http-api.md).
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

from fastapi import Request

from paddock.errors import InvalidRequest
from paddock.gateway.generation.fields import JOB_ID, GenerationFields
from paddock.gateway.http.bodies import read_body
from paddock.seeds import seed_of

JOB: Final = "paddock.job"
"""Where a request's scope has it."""
HEADER: Final = "x-job-id"

Body = TypeVar("Body", bound=GenerationFields)


async def read_generation(request: Request, schema: type[Body], *, limit: int) -> Body:
    """The body of a request for an answer, with its job's id and the seed that follows from it."""
    body = await read_body(request, schema, limit=limit)
    job = _job(request.headers.get(HEADER), body.job_id)
    if job is None:
        return body
    request.scope[JOB] = job
    seed = seed_of(job) if body.seed in (None, -1) else body.seed
    return body.model_copy(update={"job_id": job, "seed": seed})


def _job(header: str | None, field: str | None) -> str | None:
    if header is None:
        return field
    if not re.fullmatch(JOB_ID, header):
        raise InvalidRequest(
            "X-Job-Id: from 1 to 256 printable characters without spaces are expected", param="X-Job-Id"
        )
    if field not in (None, header):
        raise InvalidRequest(f"the header names the job {header!r}, the body {field!r}", param="job_id")
    return header

"""Job ids: a client's name for its work. It is echoed, logged and counted, and it is the default seed.

The same job therefore samples the same tokens wherever and whenever it runs (docs/guides/http-api.md).
"""

from __future__ import annotations

import re

from fastapi import Request

from paddock.errors import InvalidRequest
from paddock.gateway.generation.endpoint import Body
from paddock.gateway.generation.fields import JOB_ID
from paddock.gateway.http.access_log import JOB_HEADER
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.scope import JOB
from paddock.seeds import seed_of


async def read_generation(request: Request, schema: type[Body], *, limit: int) -> Body:
    """The body of a request that generates, with its job id and the seed that follows from it."""
    return with_job(request, await read_body(request, schema, limit=limit))


def with_job(request: Request, body: Body) -> Body:
    """The body with the job id of the header, and the seed that follows from the job id."""
    job = _job_id(request.headers.get(JOB_HEADER), body.job_id)
    if job is None:
        return body
    request.scope[JOB] = job
    seed = seed_of(job) if body.seed in (None, -1) else body.seed
    return body.model_copy(update={"job_id": job, "seed": seed})


def _job_id(header: str | None, field: str | None) -> str | None:
    if header is None:
        return field
    if not re.fullmatch(JOB_ID, header):
        raise InvalidRequest("X-Job-Id: must have 1 to 256 printable characters and no spaces", param="X-Job-Id")
    if field not in (None, header):
        raise InvalidRequest(
            f"the X-Job-Id header is {header!r}, but job_id in the body is {field!r}: send one of them", param="job_id"
        )
    return header

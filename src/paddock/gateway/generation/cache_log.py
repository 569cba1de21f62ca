"""Cache reports in the log, at debug level. Words of prompts are logged with `log_prompts` only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from paddock.fleet import Generation, Model
from paddock.types import CacheReport, GenerateRequest, Usage

_log = structlog.get_logger(__name__)


def with_reports(requests: Sequence[GenerateRequest]) -> Sequence[GenerateRequest]:
    """The same requests. Those that will be logged ask for a report."""
    if not _is_debugging():
        return requests
    return [msgspec.structs.replace(request, cache_report=True) for request in requests]


def log_reports(
    generations: Sequence[Generation], requests: Sequence[GenerateRequest], model: Model, *, words: bool
) -> None:
    """Log the report of each generation when it ends, with the `words` of the prompts or without."""
    if not _is_debugging():
        return
    for generation, request in zip(generations, requests, strict=True):
        generation.when_ended(partial(_write, generation, request.request_id, model.name, words))


def _write(generation: Generation, request_id: str, model: str, words: bool, _: Usage) -> None:
    if generation.cache_report is not None:
        _log.debug("prompt cache", model=model, request_id=request_id, **_fields(generation.cache_report, words=words))


def _fields(report: CacheReport, *, words: bool) -> dict[str, Any]:
    reused, parted = report.reused, report.parted
    fields: dict[str, Any] = {
        "reason": report.reason,
        "cells": reused.cells,
        "host": reused.host,
        "disk": reused.disk,
        "computed": report.computed,
        "evicted": report.evicted,
    }
    if parted is not None:
        fields["parted_at"] = parted.character
        if parted.message is not None:
            fields |= {"message": parted.message.index, "role": parted.message.role}
            if parted.message.character is not None:
                fields["message_character"] = parted.message.character
        if parted.tool is not None:
            fields["tool"] = parted.tool
        if words:
            fields |= {"text": parted.text, "known": parted.known}
    return fields


def _is_debugging() -> bool:
    return logging.getLogger().isEnabledFor(logging.DEBUG)

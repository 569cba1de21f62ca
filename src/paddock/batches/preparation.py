"""From an uploaded file to lines that can be run: validated and ordered. Runs on a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from paddock.batches.ordering import PrefixSort
from paddock.batches.records import Batch, Mistake, NewLine
from paddock.batches.store import Store
from paddock.batches.validation import Check, Validator, ValidLine
from paddock.errors import PaddockError, QuotaExceeded

_TOGETHER: Final = 500
"""Lines that are stored in one transaction."""
_WORK, _PAUSE = 0.004, 0.001
"""The seconds of work after which the thread lets others run: requests are being served beside it."""

_T = TypeVar("_T")


class Models(Protocol):
    """What the validation asks the server."""

    def identity(self, model: str) -> str | None: ...

    def check(self, batch: Batch) -> Check: ...


def prepare(
    batch: Batch,
    store: Store,
    call: Callable[..., Any],
    models: Models,
    *,
    longest: int,
    most_waiting: int,
    is_stopped: Callable[[], bool],
    now: Callable[[], int],
) -> Batch | None:
    """The batch as it is then: running, or refused with all its mistakes. None if it was stopped.

    `call` runs an operation of the store on the store's thread.
    """
    try:
        validator = Validator(batch.endpoint, models.check(batch), longest=longest)
    except PaddockError as error:
        refused: Batch = call(store.refuse, batch.id, [Mistake(error.code, error.message, error.param)], now())
        return refused
    with PrefixSort(store.folder.sorting / batch.id) as order:
        try:
            for chunk in add_lines(batch, store, call, validator):
                if is_stopped():
                    return None
                if not validator.mistakes:
                    for one in chunk:
                        order.add(one.key, one.line.number)
        except FileNotFoundError:
            mistake = Mistake(
                "input_lost", f"the input file {batch.input_file} is no longer on the disk", "input_file_id"
            )
            lost: Batch = call(store.refuse, batch.id, [mistake], now())
            return lost
        mistakes = validator.report()
        if not mistakes and not batch.total:  # else they were counted when it was created
            try:
                call(store.check_quota, batch.owner, validator.total, most_waiting)
            except QuotaExceeded as error:
                mistakes = [Mistake(error.code, error.message)]
        if not mistakes:
            for chunk_of_numbers in _chunks(enumerate(order.numbers()), _TOGETHER):
                if is_stopped():
                    return None
                call(store.set_ranks, batch.id, [(number, rank) for rank, number in chunk_of_numbers])
    if mistakes:
        failed: Batch = call(store.refuse, batch.id, mistakes, now())
        return failed
    model = validator.model
    assert model is not None, "there is a valid line"
    identity = models.identity(model)
    if identity is None:
        gone = Mistake("model_not_found", f"the model {model!r} is no longer served", "model")
        removed: Batch = call(store.refuse, batch.id, [gone], now())
        return removed
    started: Batch = call(store.start, batch.id, total=validator.total, model=model, identity=identity, now=now())
    return started


def add_lines(batch: Batch, store: Store, call: Callable[..., Any], validator: Validator) -> Iterator[list[ValidLine]]:
    """Validate the input file and store its valid lines, some at a time. Raises `FileNotFoundError`."""
    for chunk in _chunks(_paced(validator.lines(store.folder.file(batch.input_file))), _TOGETHER):
        repeated: list[tuple[NewLine, int]] = call(store.add_lines, batch.id, [one.line for one in chunk])
        for line, first in repeated:
            validator.repeat(line, first)
        yield chunk


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _paced(items: Iterable[_T]) -> Iterator[_T]:
    """The same items, with pauses: validation uses no more than most of one core, and never for long at a time."""
    begun = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - begun > _WORK:
            time.sleep(_PAUSE)
            begun = time.perf_counter()

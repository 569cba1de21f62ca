"""Sends the state of the worker to the live view once a second, on a thread that runs only while a client watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from paddock.scheduling import CacheSpan, merge_spans
from paddock.types import ReportView, SpanView, TreeView
from paddock.wire.messages import View
from paddock.worker.generation_thread import GenerationThread

_INTERVAL = 1.0
_MAX_SPANS = 400
_MAX_TEXT = 120
_RESOLUTION = 64
"""If fewer than one in this many cells have changed, and nothing else has, the tree is not sent again."""


class ViewPublisher:
    """Calls `view` on its own thread; it may wait for the engine thread."""

    def __init__(self, view: Callable[[], View], send: Callable[[View], None]) -> None:
        self._view = view
        self._send = send
        self._stop = threading.Event()

    def turn(self, *, on: bool) -> None:
        """Start or stop. After a start the first view is complete."""
        self._stop.set()
        if on:
            self._stop = threading.Event()
            threading.Thread(target=self._run, args=(self._stop,), name="view-publisher", daemon=True).start()

    def _run(self, stop: threading.Event) -> None:
        sent: TreeView | None = None
        reported: list[ReportView] = []
        while not stop.is_set():
            view = self._view()
            if view.tree is not None and sent is not None and not differs(view.tree, sent):
                view = msgspec.structs.replace(view, tree=None)
            sent = view.tree or sent
            if view.reports == reported:
                view = msgspec.structs.replace(view, reports=None)
            reported = view.reports or reported
            self._send(view)
            stop.wait(_INTERVAL)


def differs(tree: TreeView, sent: TreeView) -> bool:
    """Whether a viewer would see a difference."""
    changed = abs(tree.cells_used - sent.cells_used)
    return (tree.spans, tree.omitted) != (sent.spans, sent.omitted) or changed * _RESOLUTION >= tree.cells


class EngineViews:
    """Views of a model that generates text, with the text of the cached tokens."""

    def __init__(self, thread: GenerationThread, reports: Callable[[], list[ReportView]]) -> None:
        self._thread = thread
        self._reports = reports
        self._engine = thread.engine
        self._texts: dict[tuple[int, int, int], str] = {}

    def __call__(self) -> View:
        snapshot = self._thread.snapshot(_MAX_SPANS)
        spans, before = merge_spans(snapshot.cache.spans), self._texts
        texts = [before.get(_identity(span)) or self._text(span.tokens) for span in spans]
        self._texts = {_identity(span): text for span, text in zip(spans, texts, strict=True)}
        shape = self._engine.shape
        return View(
            snapshot.slots,
            snapshot.queued,
            TreeView(
                shape.cells,
                snapshot.cells_used,
                shape.ram_bytes,
                snapshot.stored_bytes,
                [_span_view(span, text, snapshot.slot_of) for span, text in zip(spans, texts, strict=True)],
                snapshot.cache.omitted,
            ),
            self._reports(),
        )

    def _text(self, tokens: Sequence[int]) -> str:
        vocab, size = self._engine.vocab, self._engine.info.n_vocab
        data = bytearray()
        for token in tokens:
            if 0 <= token < size:  # a restored file may contain any number, and native code would crash
                data += vocab.name(token)
            if len(data) >= 4 * _MAX_TEXT:
                break
        return data.decode("utf-8", "replace")[:_MAX_TEXT]


def _identity(span: CacheSpan) -> tuple[int, int, int]:
    """Changes when the tokens of the span change."""
    return span.id, span.start, len(span.tokens)


def _span_view(span: CacheSpan, text: str, slot_of: dict[int, int]) -> SpanView:
    running = span.holders & slot_of.keys()
    return SpanView(
        span.id,
        span.parent,
        span.start,
        len(span.tokens),
        hot=bool(running),
        stored=span.stored,
        slots=sorted(slot_of[sequence] for sequence in running),
        hits=span.hits,
        # The rest of a namespace tells adapters and deterministic requests apart.
        tenant=span.namespace.partition("\0")[0],
        text=text,
    )

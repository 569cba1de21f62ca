"""Showing what goes on to those who look on: once a second, on a thread that is there only while somebody does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from paddock.engine import Engine
from paddock.scheduling import CacheSpan, merge_spans
from paddock.types import SpanView, TreeView
from paddock.wire import View
from paddock.worker.engine_thread import EngineThread

_INTERVAL = 1.0
_MOST_SPANS = 400
_LONGEST_TEXT = 120
_FINEST = 64
"""Parts of the cells: when fewer have been filled or freed, and nothing else has changed, the tree is as it was."""


class ViewPublisher:
    """`look` is called on that thread, and may wait for the engine."""

    def __init__(self, look: Callable[[], View], send: Callable[[View], None]) -> None:
        self._look = look
        self._send = send
        self._stop = threading.Event()

    def turn(self, *, on: bool) -> None:
        """Whoever begins to watch is shown everything, whatever was shown before."""
        self._stop.set()
        if on:
            self._stop = threading.Event()
            threading.Thread(target=self._show, args=(self._stop,), name="watching", daemon=True).start()

    def _show(self, stop: threading.Event) -> None:
        shown: TreeView | None = None
        while not stop.is_set():
            view = self._look()
            if view.tree is not None and shown is not None and not differs(view.tree, shown):
                view = msgspec.structs.replace(view, tree=None)
            shown = view.tree or shown
            self._send(view)
            stop.wait(_INTERVAL)


def differs(tree: TreeView, shown: TreeView) -> bool:
    """Whether somebody would see a difference."""
    filled = abs(tree.cells_used - shown.cells_used)
    return (tree.spans, tree.omitted) != (shown.spans, shown.omitted) or filled * _FINEST >= tree.cells


class EngineViews:
    """What is to be seen of an engine that generates text, with the words that its tokens stand for."""

    def __init__(self, thread: EngineThread, engine: Engine) -> None:
        self._thread = thread
        self._engine = engine
        self._texts: dict[tuple[int, int, int], str] = {}
        """By what tells a span's tokens from those it had before."""

    def __call__(self) -> View:
        sight = self._thread.look(_MOST_SPANS)
        spans, before = merge_spans(sight.cache.spans), self._texts
        texts = [before.get(_place(span)) or self._text(span.tokens) for span in spans]
        self._texts = {_place(span): text for span, text in zip(spans, texts, strict=True)}
        shape = self._engine.shape
        return View(
            sight.slots,
            sight.queued,
            TreeView(
                shape.cells,
                sight.cells_used,
                shape.ram_bytes,
                sight.stored_bytes,
                [_shown(span, text, sight.places) for span, text in zip(spans, texts, strict=True)],
                sight.cache.omitted,
            ),
        )

    def _text(self, tokens: Sequence[int]) -> str:
        vocab, size = self._engine.vocab, self._engine.info.n_vocab
        data = bytearray()
        for token in tokens:
            if 0 <= token < size:  # a restored file may say anything, and native code would not survive it
                data += vocab.name(token)
            if len(data) >= 4 * _LONGEST_TEXT:
                break
        return data.decode("utf-8", "replace")[:_LONGEST_TEXT]


def _place(span: CacheSpan) -> tuple[int, int, int]:
    return span.id, span.start, len(span.tokens)


def _shown(span: CacheSpan, text: str, places: dict[int, int]) -> SpanView:
    return SpanView(
        span.id,
        span.parent,
        span.start,
        len(span.tokens),
        hot=bool(span.holders),
        stored=span.stored,
        slots=sorted(places[sequence] for sequence in span.holders & places.keys()),
        hits=span.hits,
        # What was computed differently is kept apart by more than the tenant's name.
        tenant=span.namespace.partition("\0")[0],
        text=text,
    )

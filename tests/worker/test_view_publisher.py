"""A thread that shows things while somebody looks, and is gone when nobody does."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from paddock.types import SlotView, SpanView, TreeView
from paddock.wire.messages import View
from paddock.worker.view_publisher import ViewPublisher, differs

TREE = TreeView(6400, 0, 0, 0, [SpanView(1, None, 0, 3, True, False, [0], 0, "", "one")], 0)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "watching"]


def test_who_begins_to_watch_is_shown_everything_at_once() -> None:
    sent: SimpleQueue[View] = SimpleQueue()
    watching = ViewPublisher(lambda: View([SlotView(0)], 2, TREE), sent.put)
    assert not _threads()
    watching.turn(on=True)
    assert sent.get(timeout=30) == View([SlotView(0)], 2, TREE)
    assert sent.get(timeout=30) == View([SlotView(0)], 2), "and then what has changed"
    watching.turn(on=True)
    while sent.get(timeout=30).tree is None:
        pass
    watching.turn(on=False)
    for thread in _threads():
        thread.join(30)
    assert not _threads()


def test_a_tree_that_has_changed_is_shown_again() -> None:
    other = msgspec.structs.replace(TREE, spans=[])
    trees = [TREE, TREE, other, other, TREE]
    shown: list[TreeView | None] = []
    done = threading.Event()

    def send(view: View) -> None:
        shown.append(view.tree)
        if not trees:
            watching.turn(on=False)
            done.set()

    watching = ViewPublisher(lambda: View([], 0, trees.pop(0)), send)
    watching.turn(on=True)
    assert done.wait(30)
    assert shown == [TREE, None, other, None, TREE]


def test_a_model_without_a_tree_shows_none() -> None:
    sent: SimpleQueue[View] = SimpleQueue()
    watching = ViewPublisher(lambda: View([SlotView(0, "prompt", 3)], 0), sent.put)
    watching.turn(on=True)
    assert [sent.get(timeout=30) for _ in range(2)] == [View([SlotView(0, "prompt", 3)], 0)] * 2
    watching.turn(on=False)


@given(st.integers(0, 6400), st.integers(0, 6400))
def test_a_few_cells_make_no_difference(before: int, now: int) -> None:
    one, other = (msgspec.structs.replace(TREE, cells_used=used) for used in (before, now))
    assert differs(one, other) == (abs(before - now) >= 100)
    assert differs(one, msgspec.structs.replace(one, omitted=1))

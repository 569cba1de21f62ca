"""The thread that sends views runs only while a client watches."""

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
    return [thread for thread in threading.enumerate() if thread.name == "view-publisher"]


def test_the_first_view_is_complete_and_sent_at_once() -> None:
    sent: SimpleQueue[View] = SimpleQueue()
    publisher = ViewPublisher(lambda: View([SlotView(0)], 2, TREE), sent.put)
    assert not _threads()
    publisher.turn(on=True)
    assert sent.get(timeout=30) == View([SlotView(0)], 2, TREE)
    assert sent.get(timeout=30) == View([SlotView(0)], 2), "the tree has not changed"
    publisher.turn(on=True)
    while sent.get(timeout=30).tree is None:
        pass
    publisher.turn(on=False)
    for thread in _threads():
        thread.join(30)
    assert not _threads()


def test_a_changed_tree_is_sent_again() -> None:
    other = msgspec.structs.replace(TREE, spans=[])
    trees = [TREE, TREE, other, other, TREE]
    sent_trees: list[TreeView | None] = []
    done = threading.Event()

    def send(view: View) -> None:
        sent_trees.append(view.tree)
        if not trees:
            publisher.turn(on=False)
            done.set()

    publisher = ViewPublisher(lambda: View([], 0, trees.pop(0)), send)
    publisher.turn(on=True)
    assert done.wait(30)
    assert sent_trees == [TREE, None, other, None, TREE]


def test_a_model_without_a_tree() -> None:
    sent: SimpleQueue[View] = SimpleQueue()
    publisher = ViewPublisher(lambda: View([SlotView(0, "prompt", 3)], 0), sent.put)
    publisher.turn(on=True)
    assert [sent.get(timeout=30) for _ in range(2)] == [View([SlotView(0, "prompt", 3)], 0)] * 2
    publisher.turn(on=False)


@given(st.integers(0, 6400), st.integers(0, 6400))
def test_a_tree_with_few_changed_cells_is_not_different(before: int, now: int) -> None:
    one, other = (msgspec.structs.replace(TREE, cells_used=used) for used in (before, now))
    assert differs(one, other) == (abs(before - now) >= 100)
    assert differs(one, msgspec.structs.replace(one, omitted=1))

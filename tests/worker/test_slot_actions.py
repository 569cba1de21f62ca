"""Actions on slots: what a client may do next is possible when it has the answer."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

from paddock.engine.fake import FakeEngine
from paddock.types import SlotAction, SlotPrefix
from paddock.wire.messages import ActOnSlot, SlotDone
from paddock.worker.slot_actions import SlotActions
from tests.options import engine_options


def test_a_saved_prefix_is_unpinned_before_the_answer(tmp_path: Path) -> None:
    """Otherwise an erase after the save would erase nothing."""
    order: SimpleQueue[object] = SimpleQueue()
    cache = SimpleNamespace(pin=lambda _pieces: order.put("pin"), unpin=lambda _pieces: order.put("unpin"))
    slots = SimpleNamespace(recall=lambda _slot: (SlotPrefix([1, 2]), []))
    scheduler = cast(Any, SimpleNamespace(cache=cache, slots=slots))
    engine = FakeEngine("fake:", engine_options(cache_ram_bytes=1 << 20), lambda _: None)
    actions = SlotActions(engine, lambda visit: visit.run(scheduler), order.put)
    actions.begin(ActOnSlot(1, SlotAction(0, "save", str(tmp_path), "a.bin")))
    assert [order.get(timeout=60) for _ in range(2)] == ["pin", "unpin"]
    answer = order.get(timeout=60)
    assert isinstance(answer, SlotDone) and answer.tokens == 2

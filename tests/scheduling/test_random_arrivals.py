"""Random sequences of arrivals, cancellations and slot actions. Every answer must be the one it would be alone."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from paddock.types import Adapters, SlotPrefix
from tests.scheduling.harness import CUT, Harness, Sets, Texts, answer_alone
from tests.tiers import examples


class Arrivals(RuleBasedStateMachine):
    """Requests of several keys arrive, run, are preempted and cancelled, and slots are saved, restored and erased."""

    whole: bool | str = False
    buffer, parts, unified = False, False, True
    ids = Bundle("ids")
    saved = Bundle("saved")

    def __init__(self) -> None:
        super().__init__()
        self.ram_bytes = 150 * 1024
        self.harness = Harness(
            n_ctx=200,
            parallel=3,
            batch=24,
            cache_ram_bytes=self.ram_bytes,
            whole=self.whole,
            buffer=self.buffer,
            parts=self.parts,
            kv_unified=self.unified,
        )
        self.texts: dict[int, str] = {}
        self.adapters: dict[int, Adapters] = {}
        self.cancelled: set[int] = set()

    @rule(target=ids, text=Texts, adapters=Sets, shared=st.booleans(), key=st.sampled_from("abc"), batch=st.booleans())
    def arrive(self, text: str, adapters: Adapters, shared: bool, key: str, batch: bool) -> int:
        id = len(self.texts)
        self.texts[id], self.adapters[id] = text, adapters
        namespace = "" if shared else None
        self.harness.ask(id, text, adapters=adapters, namespace=namespace, key=key, weight=ord(key) - 96, batch=batch)
        return id

    @rule(id=ids)
    def cancel(self, id: int) -> None:
        self.harness.scheduler.remove(id)
        self.cancelled.add(id)

    @rule(count=st.integers(1, 30))
    def work(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()

    @rule(target=saved, slot=st.integers(0, 2))
    def save(self, slot: int) -> Any:
        return self.harness.save(slot) if self.harness.scheduler.slots.is_free(slot) else multiple()

    @rule(slot=st.integers(0, 2), file=saved)
    def restore(self, slot: int, file: tuple[SlotPrefix, bytes]) -> None:
        assert self.harness.restore(slot, *file) <= len(file[0].tokens)

    @rule(slot=st.integers(0, 2))
    def erase(self, slot: int) -> None:
        if self.harness.scheduler.slots.is_free(slot):
            self.harness.scheduler.slots.erase(slot)

    @rule(ram_bytes=st.integers(0, 150 * 1024))
    def resize(self, ram_bytes: int) -> None:
        self.ram_bytes = ram_bytes
        self.harness.scheduler.cache.resize(ram_bytes)

    @invariant()
    def accounts_balance(self) -> None:
        cache = self.harness.scheduler.cache
        assert 0 <= cache.idle_cells <= cache.used <= self.harness.engine.shape.cells
        assert cache.stored_bytes <= self.ram_bytes

    def teardown(self) -> None:
        self.harness.run()
        for id, text in self.texts.items():
            answer, finish = answer_alone(text, n_ctx=200, adapters=self.adapters[id])
            if (id, 0) in self.harness.finished:
                assert (self.harness.text(id), self.harness.finished[id, 0]) == (answer, finish)
            else:
                assert id in self.cancelled
                assert answer.startswith(self.harness.text(id))


class ArrivalsInOnePiece(Arrivals):
    """The same with memory that cannot be cut."""

    whole = True


class BufferedArrivals(Arrivals):
    """The same with a buffer for copies, which counts as host memory."""

    buffer = True


class ArrivalsInStreams(BufferedArrivals):
    """The same with a stream for each slot, which is copied as a whole."""

    unified = False


class ArrivalsInPartsOfStreams(ArrivalsInStreams):
    """The same where some tokens of a stream can be saved."""

    parts = True


class ArrivalsAtCheckpoints(Arrivals):
    """The same with memory that can be cut only where there is a checkpoint."""

    whole = CUT


class ArrivalsAtCheckpointsInStreams(ArrivalsAtCheckpoints):
    unified = False


TestArrivals = Arrivals.TestCase
TestArrivalsInOnePiece = ArrivalsInOnePiece.TestCase
TestBufferedArrivals = BufferedArrivals.TestCase
TestArrivalsInStreams = ArrivalsInStreams.TestCase
TestArrivalsInPartsOfStreams = ArrivalsInPartsOfStreams.TestCase
TestArrivalsAtCheckpoints = ArrivalsAtCheckpoints.TestCase
TestArrivalsAtCheckpointsInStreams = ArrivalsAtCheckpointsInStreams.TestCase
for case in (
    *(TestArrivals, TestArrivalsInOnePiece, TestBufferedArrivals, TestArrivalsInStreams, TestArrivalsInPartsOfStreams),
    *(TestArrivalsAtCheckpoints, TestArrivalsAtCheckpointsInStreams),
):
    case.settings = settings(examples(40), stateful_step_count=25)

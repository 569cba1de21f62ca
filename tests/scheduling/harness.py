"""A scheduler and the fake engine, stepped by hand. The fake reads its cells, so a wrong cache is a wrong answer."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import strategies as st

from paddock.engine.fake import FakeEngine
from paddock.errors import NoCells
from paddock.scheduling import Plan, Request, Scheduler
from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.types import Adapters, Operation, SamplingParams, SlotPrefix, TokenLogprobs
from tests.options import engine_options

Texts = st.text(st.sampled_from("ab"), min_size=1, max_size=90)
Sets: st.SearchStrategy[Adapters] = st.sampled_from([(), ((0, 1.0),), ((0, 0.5), (1, -1.0))])

CUT = "at checkpoints"
"""The third kind of memory: it can be cut, but only where there is a checkpoint."""
Memories = st.sampled_from([False, True, CUT])


class Harness:
    """A scheduler and its engine, stepped by hand. `whole`: the memory cannot be cut, or only at checkpoints."""

    def __init__(self, **options: Any) -> None:
        n_ctx = options.pop("n_ctx", 512)
        batch = options.pop("batch", 32)
        whole = options.pop("whole", False)
        draft = options.pop("draft", 0)
        buffer, parts = options.pop("buffer", False), options.pop("parts", False)
        speculation = options.pop("speculation", None)
        budget = options.pop("budget", None)
        options = {"parallel": 4, "cache_ram_bytes": 1 << 20, "kv_unified": True} | options
        memory = f"whole={int(whole is True)},checkpoint={int(whole == CUT)}"
        copies = f"buffer={int(buffer)},parts={int(parts)}"
        path = f"fake:n_ctx={n_ctx},{memory},draft={draft},{copies},short={options.pop('short', 0)}"
        self.engine = FakeEngine(path, engine_options(**options), lambda _: None)
        self.scheduler = Scheduler(
            shape=self.engine.shape,
            n_ctx=self.engine.info.n_ctx,
            slots=self.engine.info.n_slots,
            n_batch=batch,
            end_tokens=self.engine.vocab.end_tokens,
            exact_batch=self.engine.info.exact_batch,
            draft_slots=self.engine.info.draft_slots,
            continuous=options.get("cont_batching", True),
            budget=budget,
            speculation=speculation,
        )
        self.answers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.finished: dict[tuple[int, int], str] = {}
        self.prompt_probs: defaultdict[tuple[int, int], list[TokenLogprobs]] = defaultdict(list)
        self.computed = 0
        self.seconds = 0.01
        """What a step takes."""

    def ask(self, id: int, text: str, max_tokens: int = 1000, **fields: Any) -> Request:
        tokens = self.engine.vocab.tokenize(text, add_special=True, parse_special=True)
        request = Request(id, tokens, self.engine.sampler(SamplingParams(seed=7), tokens), max_tokens, **fields)
        self.scheduler.add(request)
        return request

    def step(self) -> Plan | None:
        plan = self.scheduler.schedule()
        if plan is None:
            return None
        self.engine.apply(plan.operations)
        cache = self.scheduler.cache
        assert cache.used == self.engine.used_cells, "the counters agree with the cells"
        assert cache.free + cache.used == self.engine.shape.cells
        assert cache.stored == self.engine.stored_tokens, "and with host memory"
        if self.engine.shape.reuse != "snapshot":
            assert cache.stored_bytes == self.held_bytes, "with its buffer"
        if isinstance(cache, CheckpointCache):
            assert len(cache._checkpoints) == self.engine.checkpoints
        if plan.spans:
            self.computed += sum(len(span.tokens) for span in plan.spans)
            try:
                results = self.engine.decode(plan.spans, exact=plan.exact, adapters=plan.adapters)
            except NoCells:
                assert self.scheduler.handle_no_cells(plan) is None, "each request has room alone"
                return plan
            for progress in self.scheduler.commit(plan, results, self.seconds):
                key = (progress.request.id, progress.request.index)
                self.prompt_probs[key] += progress.prompt
                if progress.token is not None:
                    self.answers[key].append(progress.token)
                if progress.finish is not None:
                    self.finished[key] = progress.finish
        return plan

    @property
    def held_bytes(self) -> int:
        """All host memory of prefixes."""
        return self.engine.held_bytes

    def run(self) -> None:
        for _ in range(100_000):
            if self.step() is None:
                break
        assert self.scheduler.is_idle
        self.scheduler.check_idle()
        assert set(self.engine.used_sequences()) == set(self.scheduler.cache.resident)

    def run_until(self, id: int) -> list[Operation]:
        """Until a request ends, with no time for copies after it. Returns the cache operations."""
        operations: list[Operation] = []
        while (id, 0) not in self.finished:
            plan = self.step()
            assert plan is not None, "the request runs"
            operations += plan.operations
        return operations

    def save(self, slot: int) -> tuple[SlotPrefix, bytes]:
        self.tidy()
        prefix, pieces = self.scheduler.slots.recall(slot)
        return prefix, b"".join(self.engine.pack(self.engine.view_pieces(pieces)))

    def restore(self, slot: int, prefix: SlotPrefix, packed: bytes) -> int:
        return self.scheduler.slots.adopt(slot, prefix, self.engine.unpack(memoryview(packed), len(prefix.tokens)))

    def tidy(self) -> None:
        self.scheduler.write_back()
        self.engine.apply(self.scheduler.cache.take_operations())

    def text(self, id: int, index: int = 0) -> str:
        return bytes(self.answers[id, index]).decode()


def answer_alone(text: str, max_tokens: int = 1000, n_ctx: int = 512, adapters: Adapters = ()) -> tuple[str, str]:
    harness = Harness(n_ctx=n_ctx)
    harness.ask(1, text, max_tokens, adapters=adapters)
    harness.run()
    return harness.text(1), harness.finished[1, 0]

"""A scheduler and an engine that the test steps, as the engine thread of a worker does."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from paddock.engine import open_engine
from paddock.errors import NoCells
from paddock.scheduling import Request, Scheduler
from paddock.types import SamplingParams, TokenLogprobs
from tests.options import engine_options


class Harness:
    def __init__(self, model: Path | str, **options: Any) -> None:
        chunk = options.pop("chunk", 64)
        budget = options.pop("budget", None)
        options = {"n_ctx": 2048, "n_threads": 1, "parallel": 4, "cache_ram_bytes": 64 << 20} | options
        self.engine = open_engine(str(model), engine_options(**options), lambda _: None)
        self.scheduler = Scheduler(
            shape=self.engine.shape,
            n_ctx=self.engine.info.n_ctx,
            slots=self.engine.info.n_slots,
            n_batch=chunk,
            end_tokens=self.engine.vocab.end_tokens,
            exact_batch=self.engine.info.exact_batch,
            draft_slots=self.engine.info.draft_slots,
            budget=budget,
        )
        self.answers: defaultdict[int, list[int]] = defaultdict(list)
        self.prompt_probs: defaultdict[int, list[TokenLogprobs]] = defaultdict(list)
        self.finished: dict[int, str] = {}

    def ask(self, id: int, text: str, max_tokens: int = 12, temperature: float = 0.0, **fields: Any) -> Request:
        tokens = list(fields.pop("tokens", ())) or self.engine.vocab.tokenize(
            text, add_special=True, parse_special=True
        )
        params = SamplingParams(temperature=temperature, seed=id, ignore_eos=True)
        sampler = self.engine.sampler(params, tokens, fields.pop("grammar", None))
        request = Request(id, tokens, sampler, max_tokens, **fields)
        self.scheduler.add(request)
        return request

    def step(self) -> bool:
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        started = time.perf_counter()
        self.engine.apply(plan.operations)
        if plan.spans:
            try:
                results = self.engine.decode(plan.spans, exact=plan.exact, adapters=plan.adapters)
            except NoCells:
                if (failed := self.scheduler.handle_no_cells(plan)) is not None:
                    self.finished[failed.id] = "no room"
                return True
            for progress in self.scheduler.commit(plan, results, time.perf_counter() - started):
                if progress.prompt:
                    self.prompt_probs[progress.request.id] += progress.prompt
                if progress.token is not None:
                    self.answers[progress.request.id].append(progress.token)
                if progress.finish is not None:
                    self.finished[progress.request.id] = progress.finish
        return True

    def run(self) -> None:
        while self.step():
            pass
        self.scheduler.check_idle()
        assert set(self.engine.used_sequences()) == set(self.scheduler.cache.resident)

    def alone(self, id: int, text: str, **fields: Any) -> list[int]:
        """The answer of an otherwise empty harness."""
        self.run()
        self.ask(id, text, **fields)
        self.run()
        return self.answers.pop(id)

    def close(self) -> None:
        self.engine.close()

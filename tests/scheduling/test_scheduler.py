"""The scheduler driven by the fake engine, which answers from what its cells hold: a wrong cache is a wrong answer."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from paddock.engine.fake import FakeEngine, opinion
from paddock.scheduling import Plan, Request, Scheduler
from paddock.scheduling.scheduler import GRID
from paddock.types import Adapters, EngineOptions, SamplingParams, Save, SlotPrefix, TokenLogprobs


class House:
    """A scheduler and its engine, stepped by hand."""

    def __init__(self, **options: Any) -> None:
        n_ctx = options.pop("n_ctx", 512)
        batch = options.pop("batch", 32)
        whole = options.pop("whole", False)
        draft = options.pop("draft", 0)
        options = {"parallel": 4, "cache_ram_bytes": 1 << 20, "kv_unified": True} | options
        path = f"fake:n_ctx={n_ctx},whole={int(whole)},draft={draft}"
        self.engine = FakeEngine(path, EngineOptions(**options), lambda _: None)
        self.scheduler = Scheduler(
            shape=self.engine.shape,
            n_ctx=self.engine.info.n_ctx,
            slots=self.engine.info.n_slots,
            n_batch=batch,
            end_tokens=self.engine.vocab.end_tokens,
            together=self.engine.info.together,
            drafts_for=self.engine.info.drafts_for,
            continuous=options.get("cont_batching", True),
        )
        self.answers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.finished: dict[tuple[int, int], str] = {}
        self.opinions: defaultdict[tuple[int, int], list[TokenLogprobs]] = defaultdict(list)
        self.computed = 0

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
        assert cache.running + cache.parked_cells == self.engine.used_cells, "the accounts agree with the cells"
        assert cache.free + cache.running + cache.parked_cells == self.engine.shape.cells
        assert cache.stored == self.engine.stored_tokens, "and with host memory"
        if plan.spans:
            self.computed += sum(len(span.tokens) for span in plan.spans)
            for progress in self.scheduler.commit(
                plan, self.engine.decode(plan.spans, exact=plan.exact, adapters=plan.adapters), 0.01
            ):
                key = (progress.request.id, progress.request.index)
                self.opinions[key] += progress.prompt
                if progress.token is not None:
                    self.answers[key].append(progress.token)
                if progress.finish is not None:
                    self.finished[key] = progress.finish
        return plan

    def run(self) -> None:
        for _ in range(100_000):
            if self.step() is None:
                break
        assert self.scheduler.idle
        assert self.engine.used_cells == 0
        assert self.scheduler.cache.running == 0

    def save(self, slot: int) -> tuple[SlotPrefix, bytes]:
        self.tidy()
        prefix, pieces = self.scheduler.slots.recall(slot)
        return prefix, b"".join(self.engine.pack(self.engine.lend(pieces)))

    def restore(self, slot: int, prefix: SlotPrefix, packed: bytes) -> int:
        return self.scheduler.slots.adopt(slot, prefix, self.engine.unpack(memoryview(packed), len(prefix.tokens)))

    def tidy(self) -> None:
        self.scheduler.settle()
        self.engine.apply(self.scheduler.cache.take_operations())

    def text(self, id: int, index: int = 0) -> str:
        return bytes(self.answers[id, index]).decode()


def _alone(text: str, max_tokens: int = 1000, n_ctx: int = 512, adapters: Adapters = ()) -> tuple[str, str]:
    house = House(n_ctx=n_ctx)
    house.ask(1, text, max_tokens, adapters=adapters)
    house.run()
    return house.text(1), house.finished[1, 0]


Texts = st.text(st.sampled_from("ab"), min_size=1, max_size=90)
Sets: st.SearchStrategy[Adapters] = st.sampled_from([(), ((0, 1.0),), ((0, 0.5), (1, -1.0))])


@given(st.lists(Texts, min_size=1, max_size=8), st.integers(2, 40), st.booleans(), st.booleans(), st.booleans())
def test_everybody_gets_the_answer_they_would_get_alone(
    texts: list[str], batch: int, unified: bool, continuous: bool, whole: bool
) -> None:
    house = House(batch=batch, kv_unified=unified, cont_batching=continuous, whole=whole)
    for id, text in enumerate(texts):
        house.ask(id, text)
    house.run()
    for id, text in enumerate(texts):
        assert (house.text(id), house.finished[id, 0]) == _alone(text)


@given(st.lists(Texts, min_size=2, max_size=8), st.booleans())
def test_cells_for_few_are_enough_for_many(texts: list[str], whole: bool) -> None:
    """With room for one long request and a half, the youngest step back and everybody still gets their answer."""
    house = House(n_ctx=160, whole=whole)
    for id, text in enumerate(texts):
        house.ask(id, text)
    house.run()
    for id, text in enumerate(texts):
        assert (house.text(id), house.finished[id, 0]) == _alone(text, n_ctx=160)


@pytest.mark.parametrize("whole", [False, True])
def test_a_full_cache_makes_the_youngest_step_back(whole: bool) -> None:
    house = House(n_ctx=200, parallel=3, whole=whole)
    prompts = {id: f"{id}" * 66 for id in range(3)}  # 67 tokens each, growing to 128
    for id, text in prompts.items():
        house.ask(id, text)
    house.run()
    assert house.scheduler.preemptions > 0
    assert {id: house.text(id) for id in prompts} == {id: _alone(text)[0] for id, text in prompts.items()}


@pytest.mark.parametrize("ram", [1 << 20, 0])
def test_who_steps_back_while_others_wait_for_it_does_not_wait_for_them(ram: int) -> None:
    for size in range(50, 95):
        house = House(n_ctx=160, parallel=4, batch=6, cache_ram_bytes=ram)
        house.ask(1, "d" * 66)
        while not house.answers[1, 0]:
            house.step()
        for id, end in ((2, ""), (3, "b"), (4, "c")):
            house.ask(id, "a" * size + end)
        house.run()
        assert len(house.finished) == 4


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("ram", [1 << 20, 0])
def test_a_shared_prompt_that_arrives_together_is_computed_once(whole: bool, unified: bool, ram: int) -> None:
    house = House(parallel=8, whole=whole, kv_unified=unified, cache_ram_bytes=ram)
    prompt = "<|im_start|>system\n" + "x" * 200 + "<|im_end|><|im_start|>user\n"
    for id in range(8):
        house.ask(id, f"{prompt}{id}", max_tokens=2)
    house.run()
    shared = len(house.engine.vocab.tokenize(prompt, add_special=True, parse_special=True))
    assert house.computed < shared + 8 * 4


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("unified", [True, False])
def test_a_prompt_that_comes_again_is_not_computed_again(unified: bool, whole: bool) -> None:
    house = House(kv_unified=unified, whole=whole)
    first = house.ask(1, "a" * 100, max_tokens=1)
    house.run()
    second = house.ask(2, "a" * 100, max_tokens=1)
    house.run()
    assert (first.cached, second.cached) == (0, 100)
    assert house.computed == 101 + 1


def test_prompts_that_happen_to_begin_alike_are_shared_from_where_they_part() -> None:
    house = House(n_ctx=1024, batch=64)
    house.ask(1, "abc" + "x" * 200)
    house.ask(2, "abd" + "y" * 200)
    for _ in range(20):
        house.step()
    third = house.ask(3, "abd" + "y" * 200 + "?", max_tokens=1)
    house.step()
    assert third.cached == 204
    house.run()
    assert house.text(3) == _alone("abd" + "y" * 200 + "?", max_tokens=1, n_ctx=1024)[0]


def test_what_a_long_prompt_leaves_is_copied_out_bit_by_bit_while_others_answer() -> None:
    house = House(n_ctx=1024, batch=64)
    house.ask(1, "b", max_tokens=60)
    house.step()
    house.ask(2, "a" * 300, max_tokens=1)
    most, parts = house.engine.shape.most_copied, 0
    while (1, 0) not in house.finished:
        plan = house.step()
        assert plan is not None and plan.spans, "nobody waits for a step that only copies"
        copied = sum(op.end - op.start for op in plan.operations if isinstance(op, Save))
        assert copied <= most
        parts += copied > 0
    assert parts > 300 // most
    again = house.ask(3, "a" * 300, max_tokens=1)
    house.run()
    assert again.cached == 300


def test_cells_that_are_still_to_be_copied_out_are_had_when_they_are_needed() -> None:
    house = House(n_ctx=320, parallel=2)
    house.ask(1, "b", max_tokens=40)
    house.step()
    for id in range(2, 8):
        house.ask(id, f"{id}" * 250, max_tokens=1)
    house.run()
    assert {id: house.text(id, 0) for id in range(2, 8)} == {
        id: _alone(f"{id}" * 250, max_tokens=1, n_ctx=320)[0] for id in range(2, 8)
    }
    assert house.scheduler.preemptions == 0


@pytest.mark.parametrize("whole", [False, True])
def test_several_answers_to_one_prompt_cost_one_prompt(whole: bool) -> None:
    house = House(whole=whole)
    answers = [house.ask(1, "a" * 100, index=index) for index in range(3)]
    house.run()
    assert [answer.cached for answer in answers] == [0, 100, 100]
    assert {house.text(1, index) for index in range(3)} == {_alone("a" * 100)[0]}


def test_the_third_user_of_a_prompt_that_cannot_be_cut_finds_it_where_the_second_left_the_first() -> None:
    house = House(whole=True)
    seen = []
    for question in "xyz":
        seen.append(house.ask(1, "s" * 100 + question * 30, max_tokens=1))
        house.run()
    assert [request.cached for request in seen] == [0, 0, 101]


def test_a_conversation_that_cannot_be_cut_goes_on_from_its_last_answer() -> None:
    house = House(whole=True)
    first = house.ask(1, "a" * 100, max_tokens=10)
    house.run()
    again = house.ask(2, "a" * 100, max_tokens=10)
    house.run()
    after = house.ask(3, "a" * 100 + house.text(1) + "b", max_tokens=1)
    house.run()
    assert again.cached == first.prompt_size - 1
    assert after.cached == first.prompt_size + 9, "the last token of an answer is never computed"


def test_a_snapshot_is_taken_only_where_it_saves_enough() -> None:
    house = House(whole=True, batch=64)
    house.ask(1, "a" * 10, max_tokens=1)
    plan = house.step()
    assert plan is not None and [len(span.tokens) for span in plan.spans] == [11], "a short prompt does not pause"


@pytest.mark.parametrize("whole", [False, True])
def test_a_request_that_shares_nothing_reads_and_leaves_nothing(whole: bool) -> None:
    house = House(whole=whole)
    requests = [house.ask(id, "a" * 100, max_tokens=1, namespace=None) for id in range(2)]
    house.run()
    requests.append(house.ask(3, "a" * 100, max_tokens=1))
    house.run()
    assert [request.cached for request in requests] == [0, 0, 0]


def test_answers_go_on_while_a_long_prompt_is_computed() -> None:
    house = House(batch=64)
    house.ask(1, "short", max_tokens=200)
    while not house.answers[1, 0]:
        house.step()
    house.ask(2, "b" * 400, max_tokens=1)
    seen = len(house.answers[1, 0])
    steps = 0
    while (2, 0) not in house.finished:
        house.step()
        steps += 1
    assert steps > 3, "the prompt took several steps"
    assert len(house.answers[1, 0]) >= min(seen + steps, 58)


def test_a_short_prompt_need_not_wait_for_a_long_one() -> None:
    house = House(batch=32)
    house.ask(1, "a" * 400, max_tokens=1)
    house.ask(2, "b" * 30, max_tokens=1)
    order: list[int] = []
    while len(order) < 2:
        house.step()
        order += [id for id, _ in house.finished if id not in order]
    assert order == [2, 1]


def test_without_continuous_batching_one_request_ends_before_the_next_begins() -> None:
    house = House(cont_batching=False)
    for id in range(3):
        house.ask(id, f"{id}" * 20)
    while (plan := house.step()) is not None:
        assert len(plan.spans) <= 1
    assert list(house.finished) == [(0, 0), (1, 0), (2, 0)]


def test_a_pinned_request_waits_for_its_place_and_holds_up_nobody() -> None:
    house = House(parallel=2)
    house.ask(1, "a" * 20, wanted_slot=0)
    pinned = house.ask(2, "b" * 20, wanted_slot=0)
    other = house.ask(3, "c" * 20)
    house.step()
    assert (pinned.slot, other.slot) == (-1, 1)
    house.run()
    assert pinned.slot == 0


@pytest.mark.parametrize("whole", [False, True])
def test_streams_stay_dense_when_one_in_the_middle_ends(whole: bool) -> None:
    house = House(kv_unified=False, parallel=4, whole=whole)
    for id, size in enumerate((50, 2, 50, 50)):
        house.ask(id, f"{id}" * 10, max_tokens=size)
    while (plan := house.step()) is not None:
        ids = [span.sequence for span in plan.spans]
        assert not ids or ids == list(range(ids[0], ids[0] + len(ids)))
    assert house.text(3) == _alone("3" * 10, 50)[0]


def test_cancelled_requests_leave_at_once_wherever_they_are() -> None:
    house = House(parallel=2, batch=16)
    for id in range(4):
        house.ask(id, f"{id}" * 60)
    house.step()
    for id in range(4):
        house.scheduler.remove(id)
    house.run()
    assert house.finished == {}


def test_an_answer_that_fills_the_context_ends_with_length() -> None:
    house = House(n_ctx=60)
    house.ask(1, "a" * 40)
    house.run()
    assert house.finished[1, 0] == "length"
    assert len(house.answers[1, 0]) == 60 - 41


@given(
    st.lists(st.tuples(Texts, st.integers(-1, 2), st.sampled_from([0, 1, 40])), min_size=1, max_size=8),
    st.sampled_from([160, 512]),
    st.booleans(),
    st.booleans(),
)
def test_every_token_of_a_prompt_is_judged_once_whoever_else_is_there(
    requests: list[tuple[str, int, int]], n_ctx: int, unified: bool, deterministic: bool
) -> None:
    """Known prefixes or not, crowded out in the middle or not; and what was not computed is not said to be cached."""
    house = House(n_ctx=n_ctx, kv_unified=unified)
    asked = [
        house.ask(id, text, max_tokens, prompt_probs=probs, deterministic=deterministic)
        for id, (text, probs, max_tokens) in enumerate(requests)
    ]
    house.run()
    for id, (request, (text, probs, max_tokens)) in enumerate(zip(asked, requests, strict=True)):
        prompt = request.tokens[: request.prompt_size]
        expected = [opinion(prompt[:at], prompt[at], probs) for at in range(1, len(prompt))] if probs >= 0 else []
        assert house.opinions[id, 0] == expected
        assert probs < 0 or request.cached == 0
        assert (house.text(id), house.finished[id, 0]) == _alone(text, max_tokens, n_ctx)


def test_no_more_rows_are_asked_for_in_a_step_than_fit() -> None:
    house = House(n_ctx=2048, batch=1000, parallel=3)
    for id in range(3):
        house.ask(id, f"{id}" * 500, max_tokens=1, prompt_probs=0)
    while (plan := house.step()) is not None:
        assert sum(len(span.targets) for span in plan.spans) <= 128
    assert [len(house.opinions[id, 0]) for id in range(3)] == [500] * 3


def test_a_request_for_no_tokens_only_computes_its_prompt() -> None:
    house = House(batch=16)
    house.ask(1, "a" * 50, max_tokens=0)
    house.run()
    assert (house.text(1), house.finished[1, 0], house.computed) == ("", "length", 51)
    again = house.ask(2, "a" * 50, max_tokens=0)
    house.run()
    assert (again.cached, house.finished[2, 0]) == (50, "length")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("unified", [True, False])
def test_deterministic_requests_always_use_batches_of_the_same_shape(unified: bool, whole: bool) -> None:
    def shapes(before: list[str], beside: list[str]) -> list[tuple[int, int]]:
        house = House(kv_unified=unified, n_ctx=1024, whole=whole, batch=256)
        for id, text in enumerate(before):
            house.ask(10 + id, text, deterministic=True)
        house.run()
        for id, text in enumerate(beside):
            house.ask(20 + id, text, deterministic=id % 2 == 0)
        house.ask(1, "a" * 300, max_tokens=5, deterministic=True)
        seen = []
        while (plan := house.step()) is not None:
            for span, request in zip(plan.spans, plan.requests, strict=True):
                if request.id == 1:
                    assert all(other.deterministic for other in plan.requests)
                    in_prompt = span.start < request.prompt_size
                    assert len(plan.spans) <= (1 if in_prompt else house.engine.info.together)
                    assert in_prompt or all(len(span.tokens) == 1 for span in plan.spans)
                    seen.append((span.start, len(span.tokens)))
        return seen

    cold = shapes([], [])
    warm = shapes(["a" * 300 + "b"], ["a" * 200, "c" * 100, "a" * 301])
    assert len(warm) == len(cold) - 2, "what is on the grid was reused"
    assert cold[: len(cold) - len(warm)] == [(0, 128), (128, 128)][: len(cold) - len(warm)]
    assert cold[len(cold) - len(warm) :] == warm


def test_answers_that_are_dear_to_copy_are_computed_again() -> None:
    house = House()
    shape = msgspec.structs.replace(house.engine.shape, keeps_answers=False)
    house.scheduler = Scheduler(shape=shape, n_ctx=512, slots=4, n_batch=32, end_tokens=house.engine.vocab.end_tokens)
    first = house.ask(1, "a" * 40, max_tokens=20)
    house.run()
    again = house.ask(2, "a" * 40 + house.text(1), max_tokens=20)
    house.run()
    assert again.cached == first.prompt_size
    assert house.text(2) == _alone("a" * 40 + house.text(1), 20)[0]


@pytest.mark.parametrize("n_batch", [1, 48, 100, 128])
def test_a_deterministic_chunk_fits_the_batch_and_ends_on_the_grid(n_batch: int) -> None:
    def starts(text: str) -> list[int]:
        house.ask(1, text, max_tokens=1, deterministic=True)
        found = []
        while (plan := house.step()) is not None:
            assert sum(len(span.tokens) for span in plan.spans) <= n_batch
            found += [span.start for span in plan.spans]
        return found

    house = House(n_ctx=1024, batch=n_batch)
    cold = starts("a" * 300)
    assert {0, 128, 256} <= set(cold)
    assert starts("a" * 300) == [start for start in cold if start >= 256], "reused on the grid, then cut as before"


def test_deterministic_answers_share_steps_as_far_as_they_may() -> None:
    house = House(kv_unified=False, parallel=6, n_ctx=1024)
    for id in range(5):
        house.ask(id, f"{id}", max_tokens=20, deterministic=True)
    sequences = []
    while (plan := house.step()) is not None:
        sequences.append([span.sequence for span in plan.spans])
    assert max(map(len, sequences)) == house.engine.info.together == 3
    assert sum(ids == list(range(ids[0], ids[0] + 3)) for ids in sequences if len(ids) == 3) >= 15, "side by side"


@given(st.lists(st.tuples(Texts, st.booleans()), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_a_slot_saved_in_one_house_is_known_in_another(
    asked: list[tuple[str, bool]], unified: bool, elsewhere: bool
) -> None:
    first = House(kv_unified=unified)
    for id, (text, deterministic) in enumerate(asked):
        first.ask(id, text * 3, wanted_slot=id, deterministic=deterministic)
    first.run()
    second = House(kv_unified=elsewhere, parallel=6)
    for id, (text, deterministic) in enumerate(asked):
        prefix, packed = first.save(id)
        assert second.restore(5, prefix, packed) == len(prefix.tokens)
        again = second.ask(id, text * 3, deterministic=deterministic)
        second.run()
        grid = GRID if deterministic else 1
        assert again.cached == (again.prompt_size - 1) // grid * grid
        assert second.text(id) == first.text(id)


@given(st.lists(Texts, min_size=2, max_size=4), st.booleans())
def test_erasing_a_slot_takes_nothing_from_another(texts: list[str], unified: bool) -> None:
    house = House(kv_unified=unified)
    for id, text in enumerate(texts):
        house.ask(id, text, wanted_slot=id)
    house.run()
    remembered = [house.save(slot) for slot in range(len(texts))]
    before = house.scheduler.cache.stored
    erased = house.scheduler.slots.erase(0)
    house.tidy()
    assert before - erased <= house.scheduler.cache.stored <= before
    assert house.save(0)[0].tokens == []
    assert [house.save(slot) for slot in range(1, len(texts))] == remembered[1:]
    mine = tuple(remembered[0][0].tokens)
    shared = max(_common(mine, tuple(other.tokens)) for other, _ in remembered[1:])
    assert erased == len(mine) - shared


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_slot_restored_into_little_memory_keeps_its_beginning() -> None:
    first = House()
    first.ask(1, "a" * 400, wanted_slot=0)
    first.run()
    prefix, packed = first.save(0)
    second = House(cache_ram_bytes=300 * 1024)
    known = second.restore(2, prefix, packed)
    assert 0 < known <= 300
    assert second.save(2)[0].tokens == prefix.tokens[:known]
    assert House(cache_ram_bytes=0).restore(2, prefix, packed) == 0


def test_a_slot_shows_its_request_and_then_its_last() -> None:
    house = House(parallel=2)
    request = house.ask(1, "a" * 30, wanted_slot=1)
    house.step()
    assert [(slot.busy, slot.request) for slot in house.scheduler.slots] == [(False, None), (True, request)]
    assert not house.scheduler.slots.is_free(1)
    house.run()
    (_, slot) = house.scheduler.slots
    assert (slot.busy, slot.request, len(slot.prefix.tokens)) == (False, request, request.computed)
    house.ask(2, "a", wanted_slot=1, namespace=None)
    house.run()
    assert house.save(1)[0].tokens == [], "what it must not leave cannot be saved"


class Arrivals(RuleBasedStateMachine):
    """Requests of several keys come, run, are cancelled, crowd each other out and make way for each other, and slots
    are saved, restored and erased.
    """

    whole = False
    ids = Bundle("ids")
    saved = Bundle("saved")

    def __init__(self) -> None:
        super().__init__()
        self.house = House(n_ctx=200, parallel=3, batch=24, cache_ram_bytes=150 * 1024, whole=self.whole)
        self.texts: dict[int, str] = {}
        self.adapters: dict[int, Adapters] = {}
        self.cancelled: set[int] = set()

    @rule(target=ids, text=Texts, adapters=Sets, shared=st.booleans(), key=st.sampled_from("abc"), batch=st.booleans())
    def arrive(self, text: str, adapters: Adapters, shared: bool, key: str, batch: bool) -> int:
        id = len(self.texts)
        self.texts[id], self.adapters[id] = text, adapters
        namespace = "" if shared else None
        self.house.ask(id, text, adapters=adapters, namespace=namespace, key=key, weight=ord(key) - 96, batch=batch)
        return id

    @rule(id=ids)
    def cancel(self, id: int) -> None:
        self.house.scheduler.remove(id)
        self.cancelled.add(id)

    @rule(count=st.integers(1, 30))
    def work(self, count: int) -> None:
        for _ in range(count):
            self.house.step()

    @rule(target=saved, slot=st.integers(0, 2))
    def save(self, slot: int) -> Any:
        return self.house.save(slot) if self.house.scheduler.slots.is_free(slot) else multiple()

    @rule(slot=st.integers(0, 2), file=saved)
    def restore(self, slot: int, file: tuple[SlotPrefix, bytes]) -> None:
        assert self.house.restore(slot, *file) <= len(file[0].tokens)

    @rule(slot=st.integers(0, 2))
    def erase(self, slot: int) -> None:
        if self.house.scheduler.slots.is_free(slot):
            self.house.scheduler.slots.erase(slot)

    @invariant()
    def accounts_balance(self) -> None:
        cache = self.house.scheduler.cache
        assert 0 <= cache.running <= self.house.engine.shape.cells
        assert cache.stored <= 150

    def teardown(self) -> None:
        self.house.run()
        for id, text in self.texts.items():
            answer, finish = _alone(text, n_ctx=200, adapters=self.adapters[id])
            if (id, 0) in self.house.finished:
                assert (self.house.text(id), self.house.finished[id, 0]) == (answer, finish)
            else:
                assert id in self.cancelled
                assert answer.startswith(self.house.text(id))


class ArrivalsInOnePiece(Arrivals):
    """The same where nothing can be cut."""

    whole = True


TestArrivals = Arrivals.TestCase
TestArrivalsInOnePiece = ArrivalsInOnePiece.TestCase
for case in (TestArrivals, TestArrivalsInOnePiece):
    case.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

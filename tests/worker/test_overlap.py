"""The results of a step may be published while the next one is computed. No answer may differ."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.fake import FakeEngine
from paddock.engine.fake_vocab import FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.text.reply.formats import detect_format
from paddock.types import Constraint, GenerateRequest, SamplingParams, TextPrompt
from paddock.wire.messages import Delta, Stats, Step
from paddock.worker.commands import Add, Call, Ended, Event, Opened, Remove, Report
from paddock.worker.generation_thread import GenerationThread
from paddock.worker.prompts import Reply
from tests.options import draft_params, engine_options
from tests.tiers import examples, full
from tests.worker.stepped import FreeLock, SteppedThread, comparable, new_requests

_THINK = detect_format("<think></think>")
_UNDECODABLE = ord("#")


@dataclass(frozen=True)
class Ask:
    question: str
    stop: tuple[str, ...] = ()
    n: int = 1
    max_tokens: int | None = 40
    pattern: str | None = None
    """A regular expression for the answer."""
    thinking_budget: int | None = None
    n_probs: int = -1
    deterministic: bool = False
    arrives: int = 0
    """Before this step."""
    leaves: int | None = None
    """The client disconnects before this step."""


Words = st.text("ab c", min_size=1, max_size=20)
"""Three times a text, and the markers of a chat, fit into the smallest context. The worker refuses longer prompts."""
Questions = st.one_of(
    Words.map("say: {}".format),
    Words.map(lambda words: f"say: {words * 3}"),
    st.sampled_from(["a horse", "a horse", "two mares", "raise: it", "say: ab#cab", "say: <think>abcabcabc</think>cc"]),
)
Asks = st.builds(
    Ask,
    Questions,
    stop=st.lists(st.text("ab c", min_size=1, max_size=3), max_size=2).map(tuple),
    n=st.integers(1, 3),
    max_tokens=st.sampled_from([0, 1, 2, 5, 40, None]),
    pattern=st.sampled_from([None, None, "[ab ]{1,9}", '(long key|long door): "(yes|no)"']),
    thinking_budget=st.sampled_from([None, None, 0, 3]),
    n_probs=st.sampled_from([-1, 2]),
    deterministic=st.sampled_from([False, False, False, True]),
    arrives=st.integers(0, 12),
    leaves=st.sampled_from([None] * 8 + [1, 3, 5, 9]),
)
Engines = st.fixed_dictionaries(
    {
        "draft": st.sampled_from([0, 0, 3]),
        "n_ctx": st.sampled_from([96, 160, 512]),
        "short": st.sampled_from([0, 0, 20]),
    }
)
Memories = st.sampled_from([{}, {}, {"whole": 1}, {"checkpoint": 1}])


@cache
def _grammar(pattern: str) -> Grammar:
    source = GrammarSource(FakeVocab(), 260)
    return source.compile(Constraint("regex", pattern, "grammar"))


def _run(asks: list[Ask], *, overlaps: bool, engine: dict[str, int], **options: Any) -> SteppedThread:
    model = "fake:" + ",".join(f"{name}={value}" for name, value in engine.items())
    thread = SteppedThread(model, overlaps=overlaps, draft=draft_params(lookup=6, priced=False), **options)
    piece = thread.engine.vocab.piece

    def fragile(token: int) -> bytes:
        if token == _UNDECODABLE:
            raise ValueError("the token cannot be decoded")
        return piece(token)

    thread.engine.vocab.piece = fragile  # type: ignore[method-assign]
    for step in range(31):
        for id, ask in enumerate(asks):
            if ask.arrives == step:
                _ask(thread, id, ask)
            if ask.leaves == step:
                thread.tell(Remove(id))
        if thread.step():
            thread._last_step = float("-inf")
    thread.run()
    return thread


def _ask(thread: SteppedThread, id: int, ask: Ask) -> None:
    request = GenerateRequest(
        TextPrompt(""),
        SamplingParams(seed=3, n_probs=ask.n_probs),
        ask.max_tokens,
        ask.stop,
        n=ask.n,
        deterministic=ask.deterministic,
        return_tokens=True,
    )
    text = f"<|im_start|>user\n{ask.question}<|im_end|>\n<|im_start|>assistant\n"
    reply = None
    if ask.thinking_budget is not None:
        reply = Reply(_THINK, (), "", True, frozenset(), ask.thinking_budget, tuple(b"</think>"))
    thread.ask(id, text, request, None if ask.pattern is None else _grammar(ask.pattern), reply)


Options = st.fixed_dictionaries(
    {
        "kv_unified": st.booleans(),
        "parallel": st.integers(1, 4),
        "context_shift": st.booleans(),
        "cont_batching": st.sampled_from([True, True, False]),
        "cache_ram_bytes": st.sampled_from([0, 1 << 16]),
    }
)


@given(st.lists(Asks, min_size=1, max_size=5), Engines, Memories, Options)
@examples(500)
def test_every_answer_is_the_same_as_without_overlap(
    asks: list[Ask], engine: dict[str, int], memory: dict[str, int], options: dict[str, Any]
) -> None:
    plain, overlapped = (_run(asks, overlaps=overlaps, engine=engine | memory, **options) for overlaps in (False, True))
    for id, ask in enumerate(asks):
        for index in range(ask.n):
            one, other = ([comparable(delta) for delta in run.answers[id, index]] for run in (plain, overlapped))
            # The client, or the failure of another answer, may end it at any step.
            if ask.leaves is not None or (ask.n > 1 and id in plain.failed):
                common = min(len(one), len(other))
                one, other = one[:common], other[:common]
            assert one == other
            for run in (plain, overlapped):
                _check_end(run, id, index)
    cut = {id for id, ask in enumerate(asks) if ask.leaves is not None}
    assert plain.failed.keys() - cut == overlapped.failed.keys() - cut
    for run in (plain, overlapped):
        _check_counts(run, has_all=not cut and not run.failed)


def _check_end(run: SteppedThread, id: int, index: int) -> None:
    """An answer ends once, and nothing follows."""
    deltas = run.answers[id, index]
    finished = [delta for delta in deltas if delta.finish is not None]
    assert finished == deltas[-len(finished) :] if finished else True
    assert len(finished) == run.ended.count((id, index)) <= 1


def _check_counts(run: SteppedThread, *, has_all: bool) -> None:
    """What was thrown away is not counted."""
    published = [delta for deltas in run.answers.values() for delta in deltas]
    assert run.count("generated_tokens") >= sum(len(delta.tokens or ()) for delta in published)
    if has_all:
        last = [deltas[-1] for deltas in run.answers.values()]
        assert run.count("generated_tokens") == sum(_usage(delta).completion_tokens for delta in last)
        assert run.count("drafted_tokens") == sum(delta.timings.drafted for delta in last if delta.timings is not None)
        assert run.count("accepted_tokens") == sum(
            delta.timings.accepted for delta in last if delta.timings is not None
        )


def _usage(delta: Delta) -> Any:
    assert delta.usage is not None, "the last delta has it"
    return delta.usage


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in a run, in order."""
    order: list[str] = []

    def note(owner: Any, name: str, word: str) -> None:
        original = getattr(owner, name)

        def noted(self: Any, *arguments: Any, **named: Any) -> Any:
            if not any(isinstance(one, Stats) for one in arguments):
                order.append(word)
            return original(self, *arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    note(FakeEngine, "submit", "submit")
    note(FakeEngine, "collect", "collect")
    note(SteppedThread, "_note", "send")
    return order


_SAY = Ask("say: abc", max_tokens=3)


def test_the_results_of_a_step_are_sent_while_the_next_one_is_computed(order: list[str]) -> None:
    _run([_SAY], overlaps=True, engine={})
    step = ["submit", "send", "collect"]
    assert order[:9] == ["submit", "collect", *step, *step, "send"]


def test_without_overlap_they_are_sent_at_once(order: list[str]) -> None:
    _run([_SAY], overlaps=False, engine={})
    assert order[:9] == ["submit", "collect", "send"] * 3


def test_a_stop_string_wastes_at_most_one_row(order: list[str]) -> None:
    ask = Ask("say: abcabc", stop=("c",))
    plain = _run([ask], overlaps=False, engine={})
    assert order.count("submit") == 3
    overlapped = _run([ask], overlaps=True, engine={})
    assert order.count("submit") == 3 + 4
    for run in (plain, overlapped):
        deltas = run.answers[0, 0]
        assert "".join(delta.text for delta in deltas) == "ab"
        assert deltas[-1].finish == "stop"
        assert run.ended == [(0, 0)]
        assert run.count("generated_tokens") == 3
        assert [slot.request.produced for slot in run._scheduler.slots if slot.request is not None] == [3]


def test_guesses_after_a_stop_string_are_not_counted() -> None:
    ask = Ask("say: abcdefghijk", stop=("f",))
    plain, overlapped = (_run([ask], overlaps=overlaps, engine={"draft": 99}) for overlaps in (False, True))
    for run in (plain, overlapped):
        timings = run.answers[0, 0][-1].timings
        assert timings is not None
        assert timings.drafted > 0
        assert run.count("drafted_tokens") == timings.drafted


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_failure_ends_the_other_answers_of_the_request(overlaps: bool) -> None:
    thread = SteppedThread("fake:", overlaps=overlaps)
    piece, failures = thread.engine.vocab.piece, ["the first"]

    def fail_once(token: int) -> bytes:
        if token == ord("c") and failures:
            raise ValueError(failures.pop())
        return piece(token)

    thread.engine.vocab.piece = fail_once  # type: ignore[method-assign]
    _ask(thread, 0, Ask("say: abcdef", n=2))
    thread.run()
    assert thread.failed.keys() == {0}
    texts = ["".join(delta.text for delta in thread.answers[0, index]) for index in (0, 1)]
    assert texts == ["ab", "ab"], "what the next step computed for the other answer is thrown away"


def test_a_command_sees_all_results_published() -> None:
    thread = SteppedThread("fake:", overlaps=True)
    _ask(thread, 0, _SAY)
    thread.step()
    assert not thread.answers
    thread.tell(Report(1))
    thread._receive()
    assert "".join(delta.text for delta in thread.answers[0, 0]) == "a"
    thread.run()


def test_results_are_published_before_the_thread_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = SteppedThread("fake:", overlaps=True)
    _ask(thread, 0, _SAY)
    thread.step()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the driver failed")

    monkeypatch.setattr(thread.engine, "submit", fail)
    with pytest.raises(RuntimeError, match="driver"):
        thread.step()
    assert "".join(delta.text for delta in thread.answers[0, 0]) == "a"


def test_overlap_is_for_engines_that_do_not_need_the_cpu() -> None:
    thread = SteppedThread("fake:", overlaps=None)
    assert not thread.engine.is_cpu_bound
    assert thread._overlaps


_PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_SHAPE = {"n_ctx": 2048, "parallel": 4, "kv_unified": False, "n_threads": 1}
"""In this layout no answer depends on the cells that it gets."""


@full
def test_a_real_model_answers_the_same(demo_model: Path) -> None:
    schema = Constraint("json_schema", '{"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}}}', "schema")
    asked: list[tuple[str, GenerateRequest]] = [
        (question, GenerateRequest(TextPrompt(""), sampling, 24, stop, constraint, cache_prompt=False))
        for question, sampling, stop, constraint in (
            ("Name three horses.", SamplingParams(temperature=0.0), (), None),
            ("Name three horses.", SamplingParams(seed=1), (" a", "."), None),
            ("Say: one, two, one, two, one, two.", SamplingParams(temperature=0.0, n_probs=2), (), None),
            ("Who?", SamplingParams(seed=2), (), schema),
        )
    ]
    plain, overlapped = (_ask_real(str(demo_model), asked, overlaps=overlaps) for overlaps in (False, True))
    assert plain == overlapped
    assert plain[1][-1].finish == "stop"


def _ask_real(model: str, asked: list[tuple[str, GenerateRequest]], *, overlaps: bool) -> list[list[Delta]]:
    """One after another: a row of a real model depends on how many others there are."""
    thread = SteppedThread(model, overlaps=overlaps, draft=draft_params(lookup=6, priced=False), **_SHAPE)
    for id, (question, request) in enumerate(asked):
        grammar = None if request.constraint is None else thread.engine.grammars.compile(request.constraint)
        thread.ask(id, _PROMPT.format(question), request, grammar)
        thread.run()
    thread.engine.close()
    return [[comparable(delta) for delta in thread.answers[id, 0]] for id in range(len(asked))]


@full
def test_the_thread_of_a_worker_with_a_real_model(demo_model: Path) -> None:
    """Answers that end in every way beside each other, while another thread looks at the state."""
    events: SimpleQueue[Event] = SimpleQueue()
    texts: defaultdict[tuple[int, int], str] = defaultdict(str)

    def note(message: Any) -> None:
        for delta in message.deltas if isinstance(message, Step) else ():
            texts[delta.id, delta.index] += delta.text

    options = engine_options(**_SHAPE)
    thread = GenerationThread(str(demo_model), options, FreeLock(), events.put, note, overlaps=True)
    thread.start()
    while not isinstance(events.get(timeout=120), Opened):
        pass
    greedy = SamplingParams(temperature=0.0, ignore_eos=True)
    asked = [
        GenerateRequest(TextPrompt(""), greedy, 30, (" the", ","), cache_prompt=False),
        GenerateRequest(TextPrompt(""), greedy, 30, n=2, cache_prompt=False),
        GenerateRequest(TextPrompt(""), greedy, 30, deterministic=True, cache_prompt=False),
        GenerateRequest(TextPrompt(""), greedy, 2000, cache_prompt=False),
    ]
    for id, request in enumerate(asked):
        for built in new_requests(thread.engine, options, id, _PROMPT.format("Describe a meadow."), request):
            thread.tell(Add(built))
    ended: set[tuple[int, int]] = set()
    while not ended >= {(0, 0), (1, 0), (1, 1), (2, 0)}:
        thread.snapshot(8)
        event = events.get(timeout=120)
        assert isinstance(event, Ended)
        ended.add((event.id, event.index))
    thread.tell(Remove(3))
    free = threading.Event()
    thread.tell(Call(free.set))
    assert free.wait(120)
    snapshot = thread.snapshot(8)
    assert not any(slot.state != "idle" for slot in snapshot.slots)
    assert texts[0, 0]
    assert " the" not in texts[0, 0]
    assert "," not in texts[0, 0]

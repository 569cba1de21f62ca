"""What a report says, from what the scheduler found and the history of prompts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.fake import FakeEngine
from paddock.scheduling import Request
from paddock.types import CacheReport, GenerateRequest, Nearest, Origin, TextPrompt
from paddock.worker.cache_reports import CacheReports
from paddock.worker.prompt_history import PromptHistory
from tests.options import engine_options

Tokens = st.lists(st.integers(0, 2), max_size=12)


class _Worker:
    """The reports of a worker, and prompts that are computed without an engine."""

    def __init__(self) -> None:
        self.engine = FakeEngine("fake:", engine_options(), lambda _: None)
        self.reports = CacheReports(self.engine.vocab, self.engine.info.n_vocab)

    def ask(self, text: str, *, nearest: str | None = None, follows: str = "", **fields: Any) -> CacheReport:
        """`nearest` is what the cache has of it, and `follows` what the cached one has after that."""
        origin = Origin(key=fields.pop("key", ""), tenant=fields.pop("tenant", ""))
        request = GenerateRequest(TextPrompt(text), origin=origin, cache_prompt=fields.pop("cache_prompt", True))
        tokens = self._tokens(text)
        explanation = self.reports.explain(request, tokens, text)
        known = self._tokens(nearest) if nearest is not None else []
        found = Nearest(len(known), self._tokens(f"x{follows}")[len(self._tokens("x")) :])
        scheduled = Request(1, tokens, None, 1, namespace=origin.tenant if request.cache_prompt else None, **fields)
        scheduled.nearest = found if nearest is not None else Nearest()
        assert explanation.begin(scheduled) and not explanation.begin(scheduled)
        self.reports.begun(explanation)
        self.reports.ended(explanation)
        return explanation.report()

    def _tokens(self, text: str) -> list[int]:
        return self.engine.vocab.tokenize(text, add_special=True, parse_special=True)


def test_the_first_prompt_is_new() -> None:
    report = _Worker().ask("the gate is open")
    assert (report.reason, report.parted, report.computed) == ("new", None, report.prompt_tokens)


def test_a_changed_word() -> None:
    report = _Worker().ask("cch=91bc; You are", nearest="cch=", follows="3f2a; You are", cached=4)
    assert report.reason == "changed" and report.parted is not None
    assert (report.parted.character, report.parted.text, report.parted.known) == (
        4,
        "cch=91bc; You are",
        "cch=3f2a; You are",
    )
    assert "Character 4 of the prompt: `cch=91bc;` against `cch=3f2a;`." in report.summary


def test_a_prompt_that_goes_on() -> None:
    assert _Worker().ask("the gate is open", nearest="the gate", cached=8).reason == "extended"


def test_a_prompt_that_is_known_but_for_its_last_token_is_a_hit() -> None:
    assert _Worker().ask("the gate is open", nearest="the gate is ope", cached=15).reason == "hit"
    assert _Worker().ask("the gate is open", nearest="the gate is ope", follows="r", cached=15).reason == "changed"


def test_an_evicted_prompt_is_told_from_a_new_one() -> None:
    worker = _Worker()
    worker.ask("the gate is open")
    report = worker.ask("the gate is open")
    assert report.reason == "evicted"
    assert report.evicted == report.prompt_tokens - 1
    parted = worker.ask("the gate is wide").parted
    assert parted is not None and (parted.text, parted.known) == ("wide", "open")


def test_a_cached_prompt_that_cannot_be_reused() -> None:
    report = _Worker().ask("the gate is open", nearest="the gate is open", cached=0)
    assert report.reason == "not_reusable"
    assert report.not_reusable == report.prompt_tokens - 1


def test_without_the_cache_nothing_is_compared() -> None:
    worker = _Worker()
    worker.ask("the gate is open")
    report = worker.ask("the gate is wide", nearest="the gate", follows="!", cache_prompt=False)
    assert (report.reason, report.parted) == ("off", None)


def test_the_words_of_other_keys_are_not_shown() -> None:
    worker = _Worker()
    secret: dict[str, Any] = {"nearest": "my name is ", "follows": "Rumpelstiltskin", "cached": 11}
    report = worker.ask("my name is Anna", key="anna", **secret)
    assert report.parted is not None and report.parted.known is None
    assert "Rump" not in str(report)
    assert "Rump" in str(worker.ask("my name is Anna", key="anna", tenant="house", **secret))
    assert "Rump" in str(worker.ask("my name is Anna", **secret))  # a server without keys


def test_the_history_of_another_key_is_not_compared() -> None:
    worker = _Worker()
    worker.ask("my name is Rumpelstiltskin", key="ben")
    assert worker.ask("my name is Anna", key="anna").reason == "new"
    own = worker.ask("my name is Ben", key="ben").parted
    assert own is not None and own.known == "Rumpelstiltskin"


def test_the_last_reports_are_kept_for_the_live_view() -> None:
    worker = _Worker()
    for number in range(20):
        worker.ask(f"prompt {number}", key="anna")
    views = worker.reports.views()
    assert [view.id for view in views] == list(range(5, 21))
    assert {view.key for view in views} == {"anna"}


# ── the history ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.sampled_from("xy"), Tokens), max_size=8), st.sampled_from("xy"), Tokens)
def test_the_nearest_prompt_is_that_of_a_search(
    prompts: list[tuple[str, list[int]]], group: str, own: list[int]
) -> None:
    history = PromptHistory()
    for owner, tokens in prompts:
        history.add(owner, tokens)
    best = 0
    for owner, tokens in prompts:
        if owner == group:
            shared = next((at for at, pair in enumerate(zip(tokens, own, strict=False)) if pair[0] != pair[1]), None)
            best = max(best, min(len(tokens), len(own)) if shared is None else shared)
    found = history.nearest(group, own)
    assert found.length == best
    if best:
        assert any(o == group and t[:best] == own[:best] and t[best:][:32] == found.following for o, t in prompts)


@given(st.lists(Tokens, max_size=20))
def test_the_history_is_bounded(prompts: list[list[int]]) -> None:
    history = PromptHistory(most=4, most_tokens=20)
    for tokens in prompts:
        history.add("", tokens)
        kept = [len(packed) // 4 for _, packed in history._prompts]
        assert len(kept) <= 4 and (sum(kept) <= 20 or len(kept) == 1)
        assert sum(kept) == history._tokens

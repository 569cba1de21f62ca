from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.batches.decisions import Candidate, ModelView, Start, Wait, decide, next_batch, outcome_of
from paddock.types.windows import Window, is_open

_IDLE = ModelView(loaded=False, slots=4)


def _decide(
    view: ModelView, policy: str = "when_idle", *, in_window: bool = True, in_flight: int | None = None
) -> object:
    return decide(view, "m", policy=policy, in_window=in_window, in_flight=in_flight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("view", "policy", "reason"),
    [
        (replace(_IDLE, served=False), "always", "'m' is not served"),
        (_IDLE, "never", "do not load models"),
        (replace(_IDLE, others_busy=True), "when_idle", "another model is in use"),
        (replace(_IDLE, loaded=True, others_wait=True), "always", "wait for another model"),
    ],
)
def test_reasons_to_wait(view: ModelView, policy: str, reason: str) -> None:
    decision = _decide(view, policy)
    assert isinstance(decision, Wait)
    assert reason in decision.reason


def test_one_line_loads_the_model() -> None:
    assert _decide(_IDLE) == Start(1, load=True)
    assert _decide(replace(_IDLE, others_busy=True), "always") == Start(1, load=True)


def test_all_slots_are_filled_and_a_line_waits_for_each() -> None:
    assert _decide(replace(_IDLE, loaded=True)) == Start(8)
    assert _decide(replace(_IDLE, loaded=True), in_flight=3) == Start(3)
    assert isinstance(_decide(replace(_IDLE, loaded=True), in_window=False), Wait)


@pytest.mark.parametrize(("slots", "lines"), [(1, 32), (4, 32), (64, 64)])
def test_embeddings_are_packed(slots: int, lines: int) -> None:
    view = ModelView(slots=slots)
    assert decide(view, "m", policy="never", in_window=True, in_flight=None, packed=True) == Start(lines)
    assert decide(view, "m", policy="never", in_window=True, in_flight=3, packed=True) == Start(3)


def test_owners_take_turns_and_an_owner_has_one_batch_at_a_time() -> None:
    batches = [Candidate("a1", "a", 3), Candidate("a2", "a", 0), Candidate("b1", "b", 1)]
    assert next_batch(batches) == batches[2]
    assert next_batch([]) is None


@pytest.mark.parametrize(
    ("status", "code", "attempts", "outcome"),
    [
        (200, None, 0, "done"),
        (400, "invalid_request", 0, "failed"),
        (429, "rate_limit_exceeded", 50, "later"),
        (503, "model_load_failed", 50, "later"),
        (503, "worker_crashed", 0, "again"),
        (503, "worker_crashed", 1, "again"),
        (503, "worker_crashed", 2, "failed"),
        (0, None, 2, "failed"),
    ],
)
def test_outcomes(status: int, code: str | None, attempts: int, outcome: str) -> None:
    assert outcome_of(status, code, attempts, 3) == outcome


@given(begin=st.integers(0, 1439), length=st.integers(1, 1439), minute=st.integers(0, 1439))
def test_windows_pass_midnight(begin: int, length: int, minute: int) -> None:
    end = (begin + length) % 1440
    window = Window.parse(f"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}")
    assert window.contains(minute) == ((minute - begin) % 1440 < length)
    assert is_open([window], minute) == window.contains(minute)
    assert is_open([], minute)


@pytest.mark.parametrize("text", ["", "22-6", "25:00-06:00", "22:00-06:60", "10:00-10:00", "00:00-24:30"])
def test_windows_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|ends at|same time"):
        Window.parse(text)

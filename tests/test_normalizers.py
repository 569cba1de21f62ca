"""Normalizers: what they drop and move, and that they do nothing else."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock import normalizers
from paddock.normalizers import NORMALIZERS, checked_normalizer

BILLING = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"
WHO = "You are Claude Code, Anthropic's official CLI for Claude."
ENVIRONMENT = """<env>
Working directory: /home/anna/shop
Is directory a git repo: Yes
Platform: linux
Today's date: 2026-02-04
</env>
Be concise."""

_PIECES = (
    *(BILLING, f"{BILLING}{WHO}", "x-anthropic-billing-header:", "x-anthropic-billing-header: no fields", WHO),
    *("Working directory: /a", " - Primary working directory: /b", "Today's date: 2026-02-04", "Today's date is x"),
    *("<env>", "", "", " ", "cch=1;", "Platform: linux", "-", "é", "Is a git repository: true", f"{BILLING} {BILLING}"),
)
_Line = st.one_of(st.sampled_from(_PIECES), st.text(max_size=12))
Texts = st.lists(st.lists(_Line, max_size=8).map("\n".join), min_size=1, max_size=4)


def _apply(*texts: str) -> list[str]:
    return NORMALIZERS["claude-code"].rule(list(texts))


def test_the_billing_header_is_dropped() -> None:
    assert _apply(f"{BILLING}\n{WHO}") == [WHO]
    assert _apply(BILLING, WHO) == [WHO]
    assert _apply(f"{BILLING}{WHO}") == [WHO]
    assert _apply(BILLING) == []


def test_two_requests_of_a_session_are_equal_afterwards() -> None:
    one, other = (f"{BILLING.replace('fa690', cch)}\n{WHO}\n{ENVIRONMENT}" for cch in ("3f2a1", "91bc0"))
    assert one != other and _apply(one) == _apply(other)


def test_directories_and_dates_move_to_the_end() -> None:
    (text,) = _apply(f"{WHO}\n{ENVIRONMENT}\n")
    assert text == (
        f"{WHO}\n<env>\nPlatform: linux\n</env>\nBe concise.\n\n"
        "Working directory: /home/anna/shop\nIs directory a git repo: Yes\nToday's date: 2026-02-04"
    )
    (newer,) = _apply(f"{WHO}\n# Environment\n - Primary working directory: /a\n - Platform: linux")
    assert newer == f"{WHO}\n# Environment\n - Platform: linux\n\n - Primary working directory: /a"


def test_prompts_of_other_programs_are_left_alone() -> None:
    for text in (ENVIRONMENT, "Working directory: /a", "What does x-anthropic-billing do?", ""):
        assert _apply(text) == [text]


def test_a_header_without_fields_is_text() -> None:
    text = f"{WHO}\nx-anthropic-billing-header: is what I ask about; tell me"
    assert _apply(text) == [text]


@given(Texts)
def test_applying_it_again_changes_nothing(texts: list[str]) -> None:
    once = _apply(*texts)
    assert _apply(*once) == once


@given(Texts)
def test_nothing_but_the_patterns_changes(texts: list[str]) -> None:
    """Every other line stays, in its order, and no text becomes longer by more than a blank line."""
    before, after = "\n".join(texts).split("\n"), "\n".join(_apply(*texts)).split("\n")
    special = ("x-anthropic-billing-header:", "orking directory", "git repo", "Today's date")

    def ordinary(lines: list[str]) -> list[str]:
        return [line for line in lines if line.strip() and not any(word in line for word in special)]

    assert [line for line in ordinary(after) if line != WHO] == [line for line in ordinary(before) if line != WHO]
    assert len("\n".join(after)) <= len("\n".join(before)) + 2
    moved = sorted(line.strip(" -") for line in before if line.lstrip(" -").startswith("Today's date is"))
    kept = sorted(line.strip(" -") for line in after if line.lstrip(" -").startswith("Today's date is"))
    assert moved == kept


@given(st.lists(st.text(max_size=30), min_size=1, max_size=3))
def test_text_without_the_patterns_is_never_touched(texts: list[str]) -> None:
    if not any(sign in text for text in texts for sign in (BILLING[:20], "Claude Code", "Claude Agent SDK")):
        assert _apply(*texts) == texts


@pytest.mark.parametrize(
    "piece",
    ["x-anthropic-billing-header: a=b;", "x-anthropic-billing-header:", "a=;", "\n", " ", "Working directory: \n", "="],
)
def test_the_work_grows_with_the_length_only(piece: str) -> None:
    def steps(size: int) -> int:
        """Executed lines of Python. What they call takes linear time, or looks at a bounded part."""
        text = f"x-anthropic-billing-header: a=b; You are Claude Code\n{piece * (size // len(piece))}"
        count = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal count
            count += event == "line"
            return trace if frame.f_code.co_filename == normalizers.__file__ else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            _apply(text)
        finally:
            sys.settrace(before)
        return count

    small, large = steps(10_000), steps(40_000)
    assert large <= 4 * small + 200


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'claude' is not a normalizer; there are: claude-code"):
        checked_normalizer("claude")

"""An answer as a list of parts: nothing is lost or repeated, and one part is open at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.generation.parts import Change, Part, Parts
from paddock.types import CallDelta, TextLogprobs, Usage
from paddock.wire.messages import Delta


def _deltas(kinds: list[str]) -> list[Delta]:
    """As a worker sends them: calls are numbered in order, and only the last one grows or is withdrawn."""
    deltas, calls = [], -1
    for number, kind in enumerate(kinds):
        text = f"{number} "
        if kind == "call":
            calls += 1
            deltas.append(Delta(1, "", calls=[CallDelta(calls, id=f"id{calls}", name="f", arguments=text)]))
        elif kind == "arguments" and calls >= 0:
            deltas.append(Delta(1, "", calls=[CallDelta(calls, arguments=text)]))
        elif kind == "withdrawn" and calls >= 0:
            deltas.append(Delta(1, text, calls=[CallDelta(calls, withdrawn=True)]))
            calls += 1  # the worker does not reuse its number
            deltas.append(Delta(1, "", calls=[CallDelta(calls, id=f"id{calls}", name="f")]))
        elif kind == "both":
            deltas.append(Delta(1, text, reasoning=text))
        elif kind == "reasoning":
            deltas.append(Delta(1, "", reasoning=text))
        elif kind == "silent":
            deltas.append(Delta(1, "", logprobs=[TextLogprobs(number, b"", 0.0, [])]))
        else:
            deltas.append(Delta(1, text, logprobs=[TextLogprobs(number, b"x", 0.0, [])]))
    return [*deltas, Delta(1, "", finish="stop", usage=Usage(1, 1))]


KINDS = st.lists(
    st.sampled_from(["text", "reasoning", "both", "call", "arguments", "withdrawn", "silent"]), max_size=30
)


@given(KINDS)
def test_parts_keep_content_and_order(kinds: list[str]) -> None:
    deltas, parts = _deltas(kinds), Parts()
    changes = [change for delta in deltas for change in parts.feed(delta)]
    said: dict[str, str] = {}
    for part in _row(changes):
        said[part.kind] = said.get(part.kind, "") + part.text
    assert said.get("text", "") == "".join(delta.text for delta in deltas)
    assert said.get("reasoning", "") == "".join(delta.reasoning for delta in deltas)
    calls = [call for delta in deltas for call in delta.calls or ()]
    assert said.get("call", "") == "".join(call.arguments for call in calls)
    withdrawn = {call.index for call in calls if call.withdrawn}
    kept = [part.call_index for part in parts.kept if part.kind == "call"]
    assert set(kept) == {call.index for call in calls} - withdrawn


@given(KINDS)
def test_changes_rebuild_the_parts(kinds: list[str]) -> None:
    """Applying the changes gives the same parts, and two parts are never open at once."""
    parts, told = Parts(), ""
    open_part: Part | None = None
    for change in (change for delta in _deltas(kinds) for change in parts.feed(delta)):
        match change.kind:
            case "begins":
                assert open_part is None
                open_part, told = change.part, ""
            case "grows":
                assert change.part is open_part
                told += change.text
            case "ends":
                assert change.part is open_part
                assert told == change.part.text
                open_part = None
    assert open_part is None


@given(KINDS)
def test_indexes_are_consecutive(kinds: list[str]) -> None:
    parts = Parts()
    row = _row([change for delta in _deltas(kinds) for change in parts.feed(delta)])
    assert [part.index for part in row] == list(range(len(row)))


@given(KINDS)
def test_logprobs_stay_with_their_text(kinds: list[str]) -> None:
    parts = Parts()
    deltas = _deltas(kinds)
    row = _row([change for delta in deltas for change in parts.feed(delta)])
    kept = [item.token for part in row for item in part.logprobs]
    reported = [item.token for delta in deltas for item in delta.logprobs or ()]
    assert kept == reported[: len(kept)]
    assert all(part.kind == "text" for part in row if part.logprobs)


def _row(changes: list[Change]) -> list[Part]:
    return [change.part for change in changes if change.kind == "begins"]

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paddock.text import TextStream


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


def _shown(data: bytes, cuts: list[int], stop: list[str]) -> tuple[str, list[str], TextStream]:
    stream = TextStream(stop)
    parts = [stream.feed(piece) for piece in _cut(data, cuts)]
    parts.append(stream.finish())
    return "".join(parts), parts, stream


_few = st.text(alphabet="ab<|é🦙", max_size=30)
_stops = st.lists(st.text(alphabet="ab<|é🦙", min_size=1, max_size=4), max_size=3)
_cuts = st.lists(st.integers(0, 120), max_size=20)


@given(_few, _cuts, _stops)
def test_what_is_shown_is_the_text_up_to_the_first_stop(text: str, cuts: list[int], stop: list[str]) -> None:
    shown, _, stream = _shown(text.encode(), cuts, stop)
    # A stop is met when its last byte arrives; of those met by then, the one that begins first cuts.
    ends = sorted(at + len(s) for s in stop for at in [text.find(s)] if at >= 0)
    assert stream.stopped == bool(ends)
    assert text.startswith(shown)
    assert not any(s in shown for s in stop)
    if not ends:
        assert shown == text


@given(_few, _cuts, _stops)
def test_no_beginning_of_a_stop_leaks_before_it_is_clear(text: str, cuts: list[int], stop: list[str]) -> None:
    whole = text + (stop[0] if stop else "")
    shown, parts, _ = _shown(whole.encode(), cuts, stop)
    for count in range(len(parts)):
        assert shown.startswith("".join(parts[:count]))


@given(st.text(max_size=20), _cuts)
def test_characters_are_never_split(text: str, cuts: list[int]) -> None:
    shown, parts, _ = _shown(text.encode(), cuts, [])
    assert shown == text
    assert "�" not in "".join(parts) or "�" in text


@given(st.binary(max_size=40), _cuts)
def test_any_bytes_give_text(data: bytes, cuts: list[int]) -> None:
    shown, _, _ = _shown(data, cuts, ["zz"])
    shown.encode("utf-8")


def test_half_a_character_at_the_end_is_dropped() -> None:
    stream = TextStream()
    assert stream.feed("ok 🦙".encode()[:-1]) == "ok "
    assert stream.finish() == ""


def test_nothing_comes_after_a_stop() -> None:
    stream = TextStream(["END"])
    assert stream.feed(b"a EN") == "a "
    assert stream.feed(b"D b") == ""
    assert stream.stopped
    assert stream.feed(b"more") == ""
    assert stream.finish() == ""

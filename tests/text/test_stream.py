from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paddock.text import StopStrings, TextStream


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
def test_the_text_ends_at_the_first_stop_string(text: str, cuts: list[int], stop: list[str]) -> None:
    shown, _, stream = _shown(text.encode(), cuts, stop)
    # A stop string is found when its last byte arrives. Of several, the one that starts first ends the text.
    ends = sorted(at + len(s) for s in stop for at in [text.find(s)] if at >= 0)
    assert stream.stopped == bool(ends)
    assert text.startswith(shown)
    assert not any(s in shown for s in stop)
    if not ends:
        assert shown == text


@given(_few, _cuts, _stops)
def test_text_that_was_shown_is_never_taken_back(text: str, cuts: list[int], stop: list[str]) -> None:
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
def test_any_bytes_become_valid_text(data: bytes, cuts: list[int]) -> None:
    shown, _, _ = _shown(data, cuts, ["zz"])
    shown.encode("utf-8")


def test_an_incomplete_character_at_the_end_is_dropped() -> None:
    stream = TextStream()
    assert stream.feed("ok 🦙".encode()[:-1]) == "ok "
    assert stream.finish() == ""


def test_there_is_no_text_after_a_stop_string() -> None:
    stream = TextStream(["END"])
    assert stream.feed(b"a EN") == "a "
    assert stream.feed(b"D b") == ""
    assert stream.stopped
    assert stream.feed(b"more") == ""
    assert stream.finish() == ""


class _Search:
    """The same by a search for each stop string."""

    def __init__(self, stop: list[str]) -> None:
        self._stop = stop
        self._held = ""
        self.stop_string = ""

    def feed(self, new: str) -> str:
        if self.stop_string:
            return ""
        text = self._held + new
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            cut, self.stop_string = min(found, key=lambda one: one[0])
            return text[:cut]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


_similar = st.text(alphabet="aab", max_size=60)
_similar_stops = st.lists(st.text(alphabet="aab", min_size=1, max_size=9), max_size=6)


@given(_similar, _cuts, _similar_stops)
def test_the_automaton_agrees_with_a_search_for_each_string(text: str, cuts: list[int], stop: list[str]) -> None:
    stream, search = TextStream(StopStrings(stop)), _Search(stop)
    for piece in _cut(text.encode(), cuts):
        assert stream.feed(piece) == search.feed(piece.decode())
        assert stream.stop_string == search.stop_string


def test_the_cost_per_character_does_not_depend_on_the_strings() -> None:
    """Strings that nearly match at every position once made each token as expensive as their total length."""

    class Counted(StopStrings):
        lookups = 0

        def _find(self, state: int, character: int) -> int:
            Counted.lookups += 1
            return super()._find(state, character)

    stops = Counted(["a" * 1000 + chr(ord("b") + number) for number in range(24)])
    Counted.lookups = 0
    stream = TextStream(stops)
    size = 20_000
    shown = "".join(stream.feed(b"aaaa") for _ in range(size // 4)) + stream.finish()
    assert len(shown) == size and not stream.stopped
    assert Counted.lookups <= 2 * size

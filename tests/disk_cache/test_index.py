"""The index of spans against a brute-force model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paddock.disk_cache import DiskIndex, Entry, StateKey, entries_for
from paddock.types import StateOrigin

KEY = StateKey(StateOrigin("engine 1", "digest", "f16", "f16", True, "n_threads 2"))
Span = tuple[str, tuple[int, ...], int]
"""A namespace, all tokens up to the end, and the start."""

_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple)
_spans = st.tuples(st.sampled_from(["", "a"]), _tokens, st.integers(0, 9)).map(
    lambda drawn: (drawn[0], drawn[1], min(drawn[2], len(drawn[1]) - 1))
)


def _entry(span: Span, size: int = 1) -> Entry:
    namespace, tokens, start = span
    (entry,) = entries_for(KEY, namespace, tokens, [start, len(tokens)])
    return replace(entry, size=size)


def _longest(spans: set[Span], namespace: str, tokens: tuple[int, ...], *, partial: bool) -> int:
    covered = 0
    for name, path, start in sorted(spans, key=lambda span: span[2]):
        if name != namespace or start > covered or path[:start] != tokens[:start]:
            continue
        shared = start
        while shared < min(len(path), len(tokens)) and path[shared] == tokens[shared]:
            shared += 1
        if partial or shared == len(path):
            covered = max(covered, shared)
    return covered


@given(st.lists(_spans, max_size=30), st.lists(st.integers(0, 29)), st.lists(_tokens, max_size=8), st.booleans())
def test_a_match_is_the_longest_chain(
    spans: list[Span], removed: list[int], prompts: list[tuple[int, ...]], partial: bool
) -> None:
    index, known = DiskIndex(KEY), set(spans)
    for span in spans:
        index.add(_entry(span))
    for number in removed:
        if number < len(spans):
            index.remove(_entry(spans[number]))
            known.discard(spans[number])
    assert len(index) == len(known) == index.bytes == len(list(index))
    assert all((_entry(span) in index) == (span in known) for span in spans)
    for prompt in [*prompts, *(tokens for _, tokens, _ in spans)]:
        for namespace in ("", "a", "other"):
            chain = index.match(namespace, prompt, partial=partial)
            _check_chain(chain, known, namespace, prompt, partial=partial)
            end = chain[-1][0].start + chain[-1][1] if chain else 0
            assert end == _longest(known, namespace, prompt, partial=partial)


def _check_chain(
    chain: list[tuple[Entry, int]], known: set[Span], namespace: str, prompt: Sequence[int], *, partial: bool
) -> None:
    assert not chain or chain[0][0].start == 0
    for (before, used), (after, _) in pairwise(chain):
        assert before.start < after.start <= before.start + used, "there is no gap, and every span adds something"
    for entry, used in chain:
        assert entry.namespace == namespace
        assert 0 < used <= len(entry)
        assert used == len(entry) or partial
        assert entry.tokens[:used] == list(prompt[entry.start : entry.start + used])
        assert (namespace, (*prompt[: entry.start], *entry.tokens), entry.start) in known


def test_of_equal_chains_the_one_with_the_smallest_files_is_used() -> None:
    tokens = tuple(range(8))
    long, first, second = _entry(("", (*tokens, 99), 0), 9), _entry(("", tokens[:3], 0), 3), _entry(("", tokens, 3), 5)
    index = DiskIndex(KEY, [long, first, second])
    assert index.match("", tokens) == [(first, 3), (second, 5)]
    assert index.match("", (*tokens, 99, 100)) == [(long, 9)]
    index.remove(second)
    assert index.match("", tokens) == [(long, 8)]
    assert index.match("", tokens, partial=False) == [(first, 3)]


def test_an_address_does_not_depend_on_earlier_cuts() -> None:
    tokens = list(range(100))
    *_, one = entries_for(KEY, "a", tokens, [0, 10, 60, 100])
    (other,) = entries_for(KEY, "a", tokens, [60, 100])
    assert one == other and one.name == other.name
    names = {
        other.name,
        entries_for(KEY, "b", tokens, [60, 100])[0].name,
        entries_for(KEY, "a", tokens, [59, 100])[0].name,
        entries_for(KEY, "a", tokens, [60, 99])[0].name,
        entries_for(KEY, "a", [1, *tokens[1:]], [60, 100])[0].name,
    }
    assert len(names) == 5


@given(st.sets(_tokens, min_size=1, max_size=20))
def test_prefixes_of_a_span_and_which_are_shared(paths: set[tuple[int, ...]]) -> None:
    index = DiskIndex(KEY, [_entry(("", path, 0)) for path in paths])
    for path in paths:
        prefixes = sorted((other for other in paths if other == path[: len(other)] != path), key=len, reverse=True)
        expected = [
            (list(one), any(other[: len(one)] == one and other != path[: len(other)] for other in paths))
            for one in prefixes
        ]
        assert [(one.tokens, is_shared) for one, is_shared in index.prefixes_of(_entry(("", path, 0)))] == expected

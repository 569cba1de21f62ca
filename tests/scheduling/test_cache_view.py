"""The bounded copy of the tree for display."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.cache_view import CacheSpan, CacheView, first_nodes, merge_spans
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.prefix_tree import PrefixTree
from paddock.scheduling.snapshot_cache import SnapshotCache
from paddock.types import CacheShape, SnapshotSize

# Few different tokens, so that prefixes branch in the middle of edges.
Tokens = st.lists(st.integers(0, 2), min_size=1, max_size=24)
# No limit.
ALL = 10_000


@st.composite
def _forests(draw: st.DrawFn) -> list[int | None]:
    """For each node its parent, which has a lower number."""
    size = draw(st.integers(0, 30))
    return [draw(st.none() | st.integers(0, node - 1)) if node else None for node in range(size)]


def _path(above: list[int | None], node: int | None) -> list[int]:
    path = []
    while node is not None:
        path.append(node)
        node = above[node]
    return path


@given(_forests(), st.integers(0, 40), st.data())
def test_first_nodes_lists_earlier_paths_first_and_parents_before_children(
    above: list[int | None], limit: int, data: st.DataObject
) -> None:
    ends = data.draw(st.lists(st.sampled_from(range(len(above))), max_size=30)) if above else []
    shown = first_nodes([_path(above, end) for end in ends], limit)
    wanted = list(dict.fromkeys(node for end in ends for node in reversed(_path(above, end))))
    assert shown == wanted[:limit]
    for place, node in enumerate(shown):
        parent = above[node]
        assert parent is None or parent in shown[:place]


# ── the prefix tree ──────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(Tokens, st.booleans()), max_size=12), st.integers(1, 60), st.integers(0, 12), st.booleans())
def test_shown_and_omitted_spans_add_up_to_the_tree(
    prompts: list[tuple[list[int], bool]], budget: int, limit: int, unified: bool
) -> None:
    cache = _cache(budget, unified=unified)
    for sequence, (tokens, stays) in enumerate(prompts):
        known = cache.enter(sequence, "", tokens, len(tokens) - 1)
        cache.advance(sequence, tokens[known:])
        if not stays:
            cache.leave(sequence, tokens, len(tokens))
            if sequence in cache.resident:
                cache.reclaim(sequence)
    nodes = list(cache._tree.nodes())
    assert cache._tree.size == len(nodes)
    shown = cache.view(limit)
    assert len(shown.spans) == min(limit, len(nodes))
    assert shown.omitted == len(nodes) - len(shown.spans)
    _is_a_tree(shown)
    whole = cache.view(ALL)
    assert {span.id: (span.start, span.tokens, span.stored, set(span.holders)) for span in whole.spans} == {
        node.id: (node.start, node.tokens, node.stored is not None, node.holders | node.duplicates) for node in nodes
    }
    assert shown.spans == whole.spans[:limit]
    # Spans in cells come before those that are only stored.
    tiers = [bool(span.holders) for span in whole.spans]
    assert tiers == sorted(tiers, reverse=True)


def test_the_most_recently_used_spans_are_shown_first() -> None:
    cache = _cache(100)
    for tokens in ([1, 1, 1], [2, 2], [3, 3]):
        _run(cache, tokens)
    _run(cache, [1, 1, 1, 5])
    assert [span.tokens for span in cache.view(3).spans] == [[1, 1, 1], [5], [3, 3]]
    assert cache.view(3).omitted == 1


def test_a_hit_is_counted_on_the_matched_path_only() -> None:
    cache = _cache(100)
    _run(cache, [1, 2, 3, 4])
    assert [span.hits for span in cache.view(ALL).spans] == [0]
    _run(cache, [1, 2, 8, 9])
    _run(cache, [1, 2, 8, 9])
    hits = {tuple(span.tokens): span.hits for span in cache.view(ALL).spans}
    assert hits == {(1, 2): 2, (3, 4): 0, (8,): 1, (9,): 0}, "the last token is always computed"


def test_namespaces_have_separate_spans() -> None:
    cache = _cache(100)
    _run(cache, [1, 2], namespace="a")
    _run(cache, [1, 2], namespace="b")
    spans = cache.view(ALL).spans
    assert {span.namespace for span in spans} == {"a", "b"}
    assert all(span.parent is None for span in spans)
    assert len({span.id for span in spans}) == 2


def test_an_empty_tree_has_an_empty_view() -> None:
    tree = PrefixTree()
    node, _ = tree.extend(0, tree.hold(0, "", tree.match("", [1, 2]), 0), [1, 2])
    assert tree.size == 1
    tree.release(0, node)
    assert tree.size == 0
    assert tree.view([], ALL) == CacheView([], 0)


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(Tokens, max_size=12), st.integers(1, 8), st.integers(0, 12))
def test_snapshots_are_shown_at_their_positions(prompts: list[list[int]], budget: int, limit: int) -> None:
    shape = CacheShape(cells=1000, unified=True, bytes_per_token=0, ram_bytes=budget, snapshot=SnapshotSize(fixed=1))
    cache = SnapshotCache(shape)
    for tokens in prompts:
        known = cache.enter(0, "", tokens, len(tokens) - 1)
        cache.advance(0, tokens[known:])
        cache.leave(0, tokens, len(tokens))
        if 0 in cache.resident:
            cache.reclaim(0)
    whole, shown = cache.view(ALL), cache.view(limit)
    _is_a_tree(whole)
    _is_a_tree(shown)
    assert whole.omitted == 0
    assert sum(span.stored for span in whole.spans) == len(cache._kept)
    assert len(shown.spans) <= limit
    assert shown.omitted == len(cache._kept) - sum(span.stored for span in shown.spans)


# ── spans that are one to who looks on ───────────────────────────────────────────────────────────────────────────────


@given(_forests(), st.data())
def test_merge_spans_keeps_all_tokens_and_is_complete(above: list[int | None], data: st.DataObject) -> None:
    spans: list[CacheSpan] = []
    for node, parent in enumerate(above):
        start = 0 if parent is None else spans[parent].start + len(spans[parent].tokens)
        tokens = data.draw(st.lists(st.just(node), min_size=1, max_size=3))
        spans.append(CacheSpan(node, parent, start, tokens, "", stored=data.draw(st.booleans())))
    found = merge_spans(spans)
    _is_a_tree(CacheView(found, 0))
    assert {span.id for span in found} <= {span.id for span in spans}
    assert _ways(found) == _ways(spans)
    for span in found:
        below = [other for other in found if other.parent == span.id]
        assert len(below) != 1 or below[0].stored != span.stored
    assert merge_spans(found) == found


def _ways(spans: list[CacheSpan]) -> list[list[int]]:
    """All tokens from the root to each leaf."""
    by_id = {span.id: span for span in spans}
    parents = {span.parent for span in spans}
    ways = []
    for end in spans:
        if end.id not in parents:
            way, span = list(end.tokens), end
            while span.parent is not None:
                span = by_id[span.parent]
                way = span.tokens + way
            ways.append(way)
    return sorted(ways)


def _is_a_tree(known: CacheView) -> None:
    seen: dict[int, CacheSpan] = {}
    for span in known.spans:
        assert span.tokens
        if span.parent is None:
            assert span.start == 0
        else:
            parent = seen[span.parent]
            assert span.start == parent.start + len(parent.tokens)
        assert span.id not in seen
        seen[span.id] = span


def _cache(ram_tokens: int, *, unified: bool = True) -> PrefixCache:
    return PrefixCache(CacheShape(cells=1000, unified=unified, bytes_per_token=8, ram_bytes=8 * ram_tokens))


def _run(cache: PrefixCache, tokens: list[int], namespace: str = "") -> None:
    known = cache.enter(0, namespace, tokens, len(tokens) - 1)
    cache.advance(0, tokens[known:])
    cache.leave(0, tokens, len(tokens))
    if 0 in cache.resident:
        cache.reclaim(0)

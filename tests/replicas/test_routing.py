"""Routing after any history."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paddock.replicas.routing import LONGEST, SLACK, Load, Router, chain_of

Names = st.sets(st.sampled_from("abcdefgh"), min_size=1)
Loads = st.builds(Load, st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
# Few different blocks, so that chains share prefixes. Each number stands for all blocks before it too.
Chains = st.lists(st.integers(0, 2), max_size=6).map(lambda parts: chain_of(["".join(map(str, parts))], block=1)[:-1])
Histories = st.lists(st.tuples(st.sampled_from("abcdefgh"), Chains), max_size=30)


def idle(names: set[str]) -> dict[str, Load]:
    return dict.fromkeys(names, Load(0, 0, 4))


def with_history(names: set[str], history: list[tuple[str, tuple[int, ...]]], capacity: int = 1000) -> Router:
    router = Router(names, capacity)
    for name, chain in history:
        router.began(name, chain)
    return router


# ── what a request says ──────────────────────────────────────────────────────────────────────────────────────────────


@given(st.text(), st.text(max_size=40), st.text(max_size=40), st.integers(1, 8))
def test_chains_share_the_common_prefix(begin: str, one: str, other: str, block: int) -> None:
    ours, theirs = chain_of([begin + one], block), chain_of([begin + other], block)
    same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if same is not None:
        whole = (len(begin) + same) // block
        assert ours[:whole] == theirs[:whole]
        assert set(ours[whole:]).isdisjoint(theirs[whole:])
    assert len(ours) == max(-(-len(begin + one) // block), 1)


@given(st.lists(st.text(max_size=9)), st.lists(st.text(max_size=9)), st.integers(1, 5))
def test_a_continued_conversation_keeps_its_chain(turn: list[str], more: list[str], block: int) -> None:
    before, after = chain_of(turn, block), chain_of(turn + more, block)
    assert after[: len(before)] == before
    assert chain_of(turn, block, apart="others")[:1] != before[:1] or not turn


def test_chains_do_not_depend_on_the_process() -> None:
    assert chain_of(["You are a horse.", "Größe 🐎"], block=8) == (
        16347909481147462062,
        6060071288297938794,
        2301700647985876033,
    )
    assert chain_of([]) == ()
    assert chain_of(["ab", "c"]) != chain_of(["a", "bc"])
    assert len(chain_of(["half a pair: \ud83d"])) == 1


def test_chains_are_bounded() -> None:
    assert len(chain_of(["x" * (LONGEST + 10)], block=1)) == LONGEST


# ── the choice ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    Names,
    Histories,
    Chains,
    st.dictionaries(st.sampled_from("abcdefgh"), Loads),
    st.sets(st.sampled_from("abc")),
    st.booleans(),
)
def test_the_choice_respects_the_load_bound(
    names: set[str],
    history: list[tuple[str, tuple[int, ...]]],
    chain: tuple[int, ...],
    loads: dict[str, Load],
    without: set[str],
    is_batch: bool,
) -> None:
    choice = with_history(names, history).choose(chain, loads, without, is_batch=is_batch)
    there = {name: loads[name] for name in loads.keys() & names - without}
    assert (choice is None) == (not there)
    if choice is None:
        return
    busy = {name: load.running + load.waiting for name, load in there.items()}
    everybody = (1 + SLACK) * (sum(busy.values()) + 1) / sum(load.slots for load in there.values())
    assert busy[choice.name] < max(1, everybody) * there[choice.name].slots


@given(Names, Histories, Chains, st.booleans())
def test_a_chain_stays_on_its_replica(
    names: set[str], history: list[tuple[str, tuple[int, ...]]], chain: tuple[int, ...], is_batch: bool
) -> None:
    router = with_history(names, history)
    first = router.choose(chain, idle(names), is_batch=is_batch)
    assert first is not None
    router.began(first.name, chain)
    again = router.choose(chain, idle(names), is_batch=is_batch)
    assert again is not None
    assert (again.name, again.known_blocks) == (first.name, len(chain))


@given(Names, Histories, Chains, st.booleans())
def test_the_longest_prefix_wins(
    names: set[str], history: list[tuple[str, tuple[int, ...]]], chain: tuple[int, ...], is_batch: bool
) -> None:
    choice = with_history(names, history).choose(chain, idle(names), is_batch=is_batch)
    assert choice is not None
    known = {0} | {
        at for name, held in history if name in names for at in range(len(chain) + 1) if held[:at] == chain[:at]
    }
    assert choice.known_blocks == max(known)
    assert choice.reason == ("prefix" if max(known) else "new")


def test_prefix_length_against_load() -> None:
    chain = chain_of(["x" * (256 * 40 - 1)])
    router = Router("ab")
    router.began("a", chain)
    crowded = {"a": Load(3, 0, 8), "b": Load(0, 0, 8)}
    full = {"a": Load(8, 0, 8), "b": Load(0, 0, 8)}
    choices = [router.choose(asked, loads) for asked in (chain, chain[:5]) for loads in (crowded, full)]
    assert [(choice.name, choice.known_blocks, choice.reason) for choice in choices if choice] == [
        ("a", 40, "prefix"),
        ("b", 0, "load"),
        ("b", 0, "load"),
        ("b", 0, "load"),
    ]


def test_lines_of_a_batch_wait_for_their_prefix() -> None:
    """Unless another replica has a free slot."""
    chain = chain_of(["x" * 600])
    router = Router("ab")
    router.began("a", chain)
    both_busy = {"a": Load(8, 4, 8), "b": Load(8, 2, 8)}
    one_free = {"a": Load(8, 0, 8), "b": Load(7, 0, 8)}
    choices = [
        router.choose(chain, loads, is_batch=is_batch) for loads in (both_busy, one_free) for is_batch in (True, False)
    ]
    assert [choice.name for choice in choices if choice] == ["a", "b", "b", "a"]


@given(Names, Histories, Chains, st.sampled_from("abcdefgh"))
def test_forget(names: set[str], history: list[tuple[str, tuple[int, ...]]], chain: tuple[int, ...], anew: str) -> None:
    router = with_history(names, history)
    router.forget(anew)
    only = router.choose(chain, {anew: Load(0, 0, 4)})
    assert (only is None) == (anew not in names)
    assert only is None or only.known_blocks == 0
    router.remove(anew)
    router.began(anew, chain)
    assert router.choose(chain, {anew: Load(0, 0, 4)}) is None


# ── what is remembered ───────────────────────────────────────────────────────────────────────────────────────────────


@given(Histories, st.integers(1, 8))
def test_blocks_are_bounded_and_keep_predecessors(history: list[tuple[str, tuple[int, ...]]], most: int) -> None:
    router = with_history(set("abc"), history, capacity=most)
    for replica in router._replicas.values():
        assert len(replica) <= most
        for _, chain in history:
            known = [block in replica._blocks for block in chain]
            assert known == sorted(known, reverse=True)
            assert replica.known(chain) == sum(known)
    assert set(router._holders) == {
        chain[0]
        for _, chain in history
        if chain and any(chain[0] in replica._blocks for replica in router._replicas.values())
    }


def test_blocks_are_evicted_lru() -> None:
    old, young = chain_of(["a" * 19], 4), chain_of(["b" * 19], 4)
    router = Router("r", capacity=7)
    for chain in (old, young, old[:1]):
        router.began("r", chain)
    known = [router.choose(chain, {"r": Load(0, 0, 1)}) for chain in (old, young)]
    assert [choice.known_blocks for choice in known if choice] == [2, 5]


# ── several routers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_independent_routers_agree() -> None:
    names = [f"replica-{number}" for number in range(10)]
    chains = [chain_of([f"question {number}"]) for number in range(2000)]

    def choices(router: Router, there: list[str]) -> list[str]:
        return [choice.name for chain in chains if (choice := router.choose(chain, idle(set(there))))]

    before = choices(Router(names), names)
    assert before == choices(Router(reversed(names)), names[::-1])
    assert all(140 <= count <= 260 for count in Counter(before).values())
    after = choices(Router(names), names[1:])
    assert all(one == other for one, other in zip(before, after, strict=True) if one != names[0])
    assert all(count <= 290 for count in Counter(after).values())

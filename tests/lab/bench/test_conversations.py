from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock_lab.bench.conversations import Conversation, Recorded, Writer, from_file
from paddock_lab.bench.lengths import Length
from paddock_lab.bench.loads import Load

_SEEDS = st.integers(0, 2**32)


def _written(count: int, seed: int, tag: int = 1, scale: float = 1.0, **said: Any) -> list[Conversation]:
    load = Load(concurrency=1, requests=1, **said)
    chance, tags = random.Random(seed), random.Random(f"{seed} {tag}")
    writer = Writer(load, chance=chance, tags=tags, words_per_token=1.0, scale=scale)
    return list(islice(writer.conversations(), count))


def _shape(conversation: Conversation) -> list[tuple[int, int | None, list[str]]]:
    """All of it but the words that make it new to a server."""
    return [(turn.output, turn.leave_after, turn.said["content"].split()[6:]) for turn in conversation.turns]


@given(_SEEDS, st.floats(0, 1), st.integers(1, 4))
def test_servers_get_the_same_but_for_how_it_begins(seed: int, share: float, turns: int) -> None:
    one, other = (
        _written(5, seed, tag, turns=turns, cancel_share=share, shared_prefix=20, shared_share=share) for tag in (1, 2)
    )
    for mine, theirs in zip(one, other, strict=True):
        assert _shape(mine) == _shape(theirs)
        assert len(mine.opening) == len(theirs.opening)
    texts = [turn.said["content"] for conversation in (*one, *other) for turn in conversation.turns]
    assert len(set(texts)) == len(texts)


@given(_SEEDS, st.sampled_from([0.0, 1.0]))
def test_the_shared_prefix_is_the_same_for_those_who_have_it(seed: int, share: float) -> None:
    found = _written(6, seed, shared_prefix=50, shared_share=share)
    assert all(conversation.opening == found[0].opening for conversation in found)
    assert [len(conversation.opening) for conversation in found] == [int(share)] * 6
    if share:
        assert len(found[0].opening[0]["content"].split()) == 50


@given(_SEEDS, st.integers(2, 300))
def test_who_leaves_does_so_in_the_middle_of_an_answer(seed: int, output: int) -> None:
    from_load = _written(10, seed, output=Length(output), cancel_share=1.0)
    left = [turn.leave_after for conversation in from_load for turn in conversation.turns]
    assert all(after is not None and 1 <= after < output for after in left)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_MESSAGES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hay?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "More?"},
    ]
}
_SHARED = {"id": "x", "conversations": [{"from": "human", "value": "Oats?"}, {"from": "gpt", "value": "No."}]}


@pytest.mark.parametrize("array", [True, False])
def test_both_shapes_are_read_in_lines_or_in_one_array(array: bool, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(
        json.dumps([_MESSAGES, _SHARED]) if array else f"{json.dumps(_MESSAGES)}\n\n{json.dumps(_SHARED)}\n"
    )
    first, second = from_file(path)
    assert [message["content"] for message in (*first.opening, *first.said)] == ["Be brief.", "Hay?", "More?"]
    assert (second.opening, [message["content"] for message in second.said]) == ((), ["Oats?"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is no JSON"),
        ('{"prompt": "x"}', "conversation 1"),
        (f'{json.dumps(_SHARED)}\n{{"messages": [{{"role": "user", "content": ["x"]}}]}}', "conversation 2"),
        ('{"messages": []}', "nobody says anything"),
        ("[3]", "conversation 1"),
        ("", "nobody says anything"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        from_file(path)


@given(_SEEDS)
def test_those_of_a_file_come_in_random_order_each_once_before_any_comes_again(seed: int) -> None:
    recorded = [Recorded((), ({"role": "user", "content": str(number)},)) for number in range(5)]
    load = Load(concurrency=1, requests=1)
    writer = Writer(load, chance=random.Random(seed), tags=random.Random(), words_per_token=1.0, scale=1.0)
    said = [each.turns[0].said["content"] for each in islice(writer.conversations(recorded), 10)]
    assert set(said[:5]) == set(said[5:]) == {"0", "1", "2", "3", "4"}

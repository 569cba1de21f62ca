from __future__ import annotations

import json
import random
import re
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


def _conversations(count: int, seed: int, tag: int = 1, scale: float = 1.0, **keys: Any) -> list[Conversation]:
    load = Load(concurrency=1, requests=1, **keys)
    rng, tags = random.Random(seed), random.Random(f"{seed} {tag}")
    writer = Writer(load, rng=rng, tags=tags, words_per_token=1.0, scale=scale)
    return list(islice(writer.conversations(), count))


def _shape(conversation: Conversation) -> list[tuple[int, int | None, list[str]]]:
    """The conversation without the first words, which differ between servers."""
    return [(turn.output, turn.leave_after, turn.message["content"].split()[6:]) for turn in conversation.turns]


@given(_SEEDS, st.floats(0, 1), st.integers(1, 4))
def test_servers_get_the_same_texts_except_for_the_first_words(seed: int, share: float, turns: int) -> None:
    one, other = (
        _conversations(5, seed, tag, turns=turns, cancel_share=share, shared_prefix=20, shared_share=share)
        for tag in (1, 2)
    )
    for mine, theirs in zip(one, other, strict=True):
        assert _shape(mine) == _shape(theirs)
        assert len(mine.opening) == len(theirs.opening)
    texts = [turn.message["content"] for conversation in (*one, *other) for turn in conversation.turns]
    assert len(set(texts)) == len(texts)


@given(_SEEDS, st.sampled_from([0.0, 1.0]))
def test_the_shared_prefix_is_the_same_in_all_conversations(seed: int, share: float) -> None:
    found = _conversations(6, seed, shared_prefix=50, shared_share=share)
    assert all(conversation.opening == found[0].opening for conversation in found)
    assert [len(conversation.opening) for conversation in found] == [int(share)] * 6
    if share:
        assert len(found[0].opening[0]["content"].split()) == 50


@given(_SEEDS, st.integers(2, 300))
def test_clients_disconnect_before_the_end_of_an_answer(seed: int, output: int) -> None:
    from_load = _conversations(10, seed, output=Length(output), cancel_share=1.0)
    left = [turn.leave_after for conversation in from_load for turn in conversation.turns]
    assert all(after is not None and 1 <= after < output for after in left)


@given(_SEEDS, st.integers(50, 400))
def test_a_part_of_a_document_is_to_be_written_again(seed: int, tokens: int) -> None:
    document = "\n".join(f"Line {number} of the stable's book." for number in range(300))
    load = Load(concurrency=1, requests=1, document="a file", prompt=Length(tokens))
    both = []
    for tag in (1, 2):
        rng, tags = random.Random(seed), random.Random(tag)
        writer = Writer(load, rng=rng, tags=tags, words_per_token=1.0, scale=1.0, document=document)
        both.append(next(writer.conversations()))
    (question,), (turn,) = both[0].opening, both[0].turns
    order, text = question["content"].split("\n\n", 2)[1:]
    new, old = re.findall(r"with (\w+) instead of (\w+)", order)[0]
    assert text in document and (question["role"], turn.message["role"]) == ("user", "assistant")
    edited = text.replace(old, new)
    assert edited.startswith(turn.message["content"]) and len(turn.message["content"]) == round(len(edited) * 0.2)
    assert both[0] != both[1] and both[0].turns == both[1].turns


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
def test_both_formats_are_read_from_lines_and_arrays(array: bool, tmp_path: Path) -> None:
    path = tmp_path / "dialogue.json"
    path.write_text(
        json.dumps([_MESSAGES, _SHARED]) if array else f"{json.dumps(_MESSAGES)}\n\n{json.dumps(_SHARED)}\n"
    )
    first, second = from_file(path)
    assert [message["content"] for message in (*first.opening, *first.user_messages)] == ["Be brief.", "Hay?", "More?"]
    assert (second.opening, [message["content"] for message in second.user_messages]) == ((), ["Oats?"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"prompt": "x"}', "conversation 1"),
        (f'{json.dumps(_SHARED)}\n{{"messages": [{{"role": "user", "content": ["x"]}}]}}', "conversation 2"),
        ('{"messages": []}', "no user message"),
        ("[3]", "conversation 1"),
        ("", "no user message"),
    ],
)
def test_an_invalid_file_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "dialogue.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        from_file(path)


@given(_SEEDS)
def test_conversations_of_a_file_come_in_random_order_without_repeats(seed: int) -> None:
    recorded = [Recorded((), ({"role": "user", "content": str(number)},)) for number in range(5)]
    load = Load(concurrency=1, requests=1)
    writer = Writer(load, rng=random.Random(seed), tags=random.Random(), words_per_token=1.0, scale=1.0)
    texts = [each.turns[0].message["content"] for each in islice(writer.conversations(recorded), 10)]
    assert set(texts[:5]) == set(texts[5:]) == {"0", "1", "2", "3", "4"}

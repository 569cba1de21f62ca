from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from paddock.batches.ordering import LONGEST_KEY, PrefixSort
from paddock.batches.prefix_keys import prefix_key
from paddock.types import ChatPrompt, TextPrompt, TokenPrompt
from tests.tiers import examples


@examples(300)
@given(
    keys=st.lists(st.binary(max_size=12) | st.sampled_from([b"same", b"same prefix"]), max_size=60),
    run_bytes=st.integers(1, 4000),
    most_runs=st.integers(2, 5),
)
def test_any_size_of_runs_gives_the_same_order(keys: list[bytes], run_bytes: int, most_runs: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "sorting"
        with PrefixSort(folder, run_bytes, most_runs) as order:
            for number, key in enumerate(keys):
                order.add(key, number)
            found = list(order.numbers())
        assert found == sorted(range(len(keys)), key=lambda number: (keys[number], number))
        assert not folder.exists()


def test_memory_is_bounded_by_a_run(tmp_path: Path) -> None:
    with PrefixSort(tmp_path / "sorting", run_bytes=1 << 20) as order:
        for number in range(200):
            order.add(b"x" * LONGEST_KEY * 2, number)
            assert sum(len(key) for key, _ in order._entries) <= 1 << 20
        assert list(order.numbers()) == list(range(200))


def _chat(*messages: tuple[str, str]) -> ChatPrompt:
    return ChatPrompt([{"role": role, "content": content} for role, content in messages])


_TEXTS = st.text(max_size=30)


@given(first=_TEXTS, second=_TEXTS, shared=st.text(min_size=1, max_size=200))
def test_prompts_with_a_common_beginning_have_keys_with_one(first: str, second: str, shared: str) -> None:
    keys = [prefix_key(TextPrompt(shared + end)) for end in (first, second)]
    assert all(key.startswith(shared.encode("utf-8", "surrogatepass")) for key in keys)


def test_lines_with_the_same_system_prompt_follow_each_other(tmp_path: Path) -> None:
    prompts = [_chat(("system", f"rules {number % 3}" * 50), ("user", f"{number}")) for number in range(30)]
    with PrefixSort(tmp_path / "sorting") as order:
        for number, prompt in enumerate(prompts):
            order.add(prefix_key(prompt), number)
        systems = [number % 3 for number in order.numbers()]
    assert systems == sorted(systems)


def test_tokens_are_ordered_by_value() -> None:
    assert prefix_key(TokenPrompt([1, 300])) < prefix_key(TokenPrompt([2])) < prefix_key(TokenPrompt([256]))


def test_adapters_keep_prompts_apart() -> None:
    prompt = TextPrompt("hello")
    assert prefix_key(prompt) != prefix_key(prompt, ((0, 1.0),))

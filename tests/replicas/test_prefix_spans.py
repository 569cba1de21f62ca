"""Which replicas have which prefixes, after any history."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.replicas.prefix_spans import LONGEST_TEXT, MOST_PROMPTS, PrefixSpan, RecentPrompts
from paddock.replicas.prompts import chain_for
from paddock.replicas.routing import BLOCK, Router
from paddock.types import ChatPrompt, GenerateRequest, Origin, TextPrompt

# Few different messages, so that prompts share beginnings.
Conversations = st.lists(st.lists(st.sampled_from(["", "a", "b", "long " * 80]), max_size=4), max_size=40)


def chat(*texts: str, **more: Any) -> GenerateRequest:
    return GenerateRequest(ChatPrompt([{"role": "user", "content": text} for text in texts]), **more)


def shown(*requests: GenerateRequest, on: tuple[str, ...] = ()) -> list[PrefixSpan]:
    """The spans after these requests, sent to the replicas `on` in turn."""
    router, recent = Router("ab"), RecentPrompts()
    for request, name in zip(requests, on or ("a",) * len(requests), strict=True):
        router.began(name, chain_for(request))
        recent.add(chain_for(request), request)
    return recent.spans(router.held)


@given(Conversations)
def test_spans_are_a_tree_of_the_last_prompts(conversations: list[list[str]]) -> None:
    spans = shown(*(chat(*texts) for texts in conversations))
    assert [span.id for span in spans] == [*range(len(spans))]
    assert len(spans) < 2 * MOST_PROMPTS
    for span in spans:
        below = [child for child in spans if child.parent == span.id]
        assert span.parent is None or span.parent < span.id
        assert all(child.start == span.start + span.characters for child in below)
        assert sum(child.prompts for child in below) <= span.prompts
        assert span.held == {"a": 1.0}
        assert len(span.text) <= LONGEST_TEXT
    assert sum(span.prompts for span in spans if span.parent is None) <= MOST_PROMPTS


@given(Conversations)
def test_the_newest_prompt_is_shown_whole(conversations: list[list[str]]) -> None:
    request = chat("the last one", *(conversations[0] if conversations else []), "its end")
    assert isinstance(request.prompt, ChatPrompt)
    spans = shown(*(chat(*texts) for texts in conversations), request)
    assert "user the last one".startswith(spans[0].text[:5])
    ends = {span.start + span.characters for span in spans}
    assert sum(len(f"user {message['content']}") for message in request.prompt.messages) in ends


def test_a_shared_system_prompt_is_a_span_of_its_own() -> None:
    system = "Be kind. " * 60
    root, second, first = shown(chat(system, "one"), chat(system, "two"), on=("a", "b"))
    assert (root.prompts, root.start, root.characters, root.held) == (2, 0, len("user " + system), {"a": 1.0, "b": 1.0})
    assert root.text.startswith("user Be kind.")
    assert (second.parent, second.text, second.held) == (root.id, "user two", {"b": 1.0})
    assert (first.parent, first.text, first.held) == (root.id, "user one", {"a": 1.0})
    assert first.start == root.characters


def test_a_continued_conversation_is_one_span_and_partly_held_elsewhere() -> None:
    (span,) = shown(chat("one"), chat("one", "two", "three", "four"), on=("a", "b"))
    assert (span.prompts, span.held) == (1, {"a": 0.25, "b": 1.0})
    assert span.characters == len("user one" + "user two" + "user three" + "user four")


def test_tenants_never_share_a_span() -> None:
    spans = shown(*(chat("the same", origin=Origin(tenant=tenant)) for tenant in ("ann", "bob")))
    assert [(span.tenant, span.parent) for span in spans] == [("bob", None), ("ann", None)]


def test_prompts_of_a_tenant_are_forgotten() -> None:
    recent = RecentPrompts()
    for tenant in ("ann", "bob", ""):
        request = chat("hello", origin=Origin(tenant=tenant))
        recent.add(chain_for(request), request)
    for forgotten, left in (("ann", ["", "bob"]), ("", ["bob"]), (None, [])):
        recent.forget(forgotten)
        assert [span.tenant for span in recent.spans(lambda _chain: {})] == left


def test_long_prompts_keep_the_beginnings_of_their_first_blocks_only() -> None:
    text = "x" * BLOCK * 100
    root, later, earlier = shown(*(GenerateRequest(TextPrompt(text + end)) for end in ("one", "two")))
    assert (root.characters, root.text) == (len(text), "x" * LONGEST_TEXT)
    assert (later.text, earlier.text, later.characters) == ("", "", 3)


def test_questions_without_a_prompt_are_not_remembered() -> None:
    recent = RecentPrompts()
    recent.add((), None)
    recent.add((), GenerateRequest(ChatPrompt([])))
    assert recent.spans(lambda _chain: {}) == []

"""The store against a model of it: any sequence of operations, restarts and the passing of time included."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from paddock.conversations import Conversation, Page, StoredResponse, new_id
from paddock.conversations.store import ConversationStore
from paddock.errors import InvalidRequest, NotFound
from tests.tiers import examples

_MOST_BYTES, _SECONDS = 2000, 100
_owners = st.sampled_from(["a", "b"])
_texts = st.text("xyz", max_size=300)


@dataclass
class _Entry:
    owner: str
    used_at: int
    order: int
    record: Any
    items: list[dict[str, Any]] = field(default_factory=list)

    @property
    def size(self) -> int:
        if isinstance(self.record, StoredResponse):
            return len(msgspec.json.encode(self.record))
        return sum(len(msgspec.json.encode(item)) for item in self.items)


class Stored(RuleBasedStateMachine):
    responses: Bundle[str] = Bundle("responses")
    conversations: Bundle[str] = Bundle("conversations")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now, self.count = 1000, 0
        self.known: dict[str, _Entry] = {}
        self.store = self._open()

    def _open(self) -> ConversationStore:
        return ConversationStore(
            Path(self.folder.name) / "db", most_bytes=_MOST_BYTES, most_read=10**6, seconds=_SECONDS
        )

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, owner: str, id: str, record: Any) -> _Entry:
        self.count += 1
        entry = self.known[id] = _Entry(owner, self.now, self.count, record)
        return entry

    def _found(self, owner: str, id: str | None) -> _Entry | None:
        entry = self.known.get(id or "")
        is_there = entry is not None and entry.owner == owner and entry.used_at > self.now - _SECONDS
        return entry if is_there else None

    def _chain(self, owner: str, id: str | None) -> list[_Entry] | None:
        found: list[_Entry] = []
        while id is not None:
            entry = self._found(owner, id)
            if entry is None:
                return None
            found.append(entry)
            id = entry.record.previous
        return found

    def _remove_oldest(self, owner: str, keep: str | None) -> None:
        for kind in (StoredResponse, Conversation):
            mine = [(id, entry) for id, entry in self.known.items() if entry.owner == owner]
            candidates = [(id, entry) for id, entry in mine if isinstance(entry.record, kind) and id != keep]
            for id, _ in sorted(candidates, key=lambda pair: (pair[1].used_at, pair[1].order)):
                if sum(entry.size for entry in self.known.values() if entry.owner == owner) > _MOST_BYTES:
                    del self.known[id]

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        target=responses,
        owner=_owners,
        text=_texts,
        previous=st.none() | responses,
        conversation=st.none() | conversations,
    )
    def add_response(self, owner: str, text: str, previous: str | None, conversation: str | None) -> str:
        id = new_id("resp_")
        items = [{"id": new_id("msg_"), "text": text}]
        output = [{"id": new_id("msg_"), "text": text[::-1]}]
        stored = StoredResponse(
            id=id, previous=previous, conversation=conversation, input=items, response={"output": output}
        )
        self.store.add_response(owner, stored, self.now)
        self._add(owner, id, stored)
        # One that has expired but was not removed yet is used again.
        kept = self.known.get(conversation or "")
        if kept is not None and kept.owner == owner:
            kept.used_at = self.now
            kept.items += [*items, *output]
        self._remove_oldest(owner, conversation)
        return id

    @rule(owner=_owners, last=responses)
    def read_chain(self, owner: str, last: str) -> None:
        expected = self._chain(owner, last)
        if expected is None:
            with pytest.raises(NotFound) as refused:
                self.store.chain(owner, last, self.now)
            assert refused.value.param == "previous_response_id"
            return
        assert self.store.chain(owner, last, self.now) == [entry.record for entry in reversed(expected)]
        for entry in expected:
            entry.used_at = self.now

    @rule(owner=_owners, id=responses)
    def delete_response(self, owner: str, id: str) -> None:
        if self._found(owner, id) is None:
            with pytest.raises(NotFound):
                self.store.delete_response(owner, id, self.now)
        else:
            self.store.delete_response(owner, id, self.now)
            del self.known[id]

    @rule(target=conversations, owner=_owners, texts=st.lists(_texts, max_size=2))
    def add_conversation(self, owner: str, texts: list[str]) -> str:
        created = Conversation(id=new_id("conv_"), created_at=self.now)
        items = [{"id": new_id("msg_"), "text": text} for text in texts]
        self.store.add_conversation(owner, created, items, self.now)
        self._add(owner, created.id, created).items += items
        self._remove_oldest(owner, created.id)
        return created.id

    @rule(owner=_owners, id=conversations, text=_texts)
    def add_items(self, owner: str, id: str, text: str) -> None:
        item = {"id": new_id("msg_"), "text": text}
        if (entry := self._found(owner, id)) is None:
            with pytest.raises(NotFound):
                self.store.add_items(owner, id, [item], self.now)
            return
        self.store.add_items(owner, id, [item], self.now)
        with pytest.raises(InvalidRequest, match="already"):
            self.store.add_items(owner, id, [{"id": new_id("msg_")}, item], self.now)
        entry.used_at = self.now
        entry.items.append(item)
        self._remove_oldest(owner, id)

    @rule(owner=_owners, id=conversations, which=st.integers(0, 5))
    def delete_item(self, owner: str, id: str, which: int) -> None:
        entry = self._found(owner, id)
        item = entry.items[which]["id"] if entry is not None and which < len(entry.items) else "msg_none"
        if item == "msg_none":
            with pytest.raises(NotFound):
                self.store.delete_item(owner, id, item, self.now)
            return
        assert entry is not None
        assert self.store.item(owner, id, item, self.now) == entry.items[which]
        self.store.delete_item(owner, id, item, self.now)
        del entry.items[which]

    @rule(owner=_owners, id=conversations, value=_texts)
    def update(self, owner: str, id: str, value: str) -> None:
        if (entry := self._found(owner, id)) is not None:
            entry.record = self.store.update_conversation(owner, id, {"k": value}, self.now)
            assert entry.record.metadata == {"k": value}

    @rule(target=conversations, owner=_owners, id=consumes(conversations))
    def delete_conversation(self, owner: str, id: str) -> Any:
        if self._found(owner, id) is None:
            with pytest.raises(NotFound):
                self.store.delete_conversation(owner, id, self.now)
            return id
        self.store.delete_conversation(owner, id, self.now)
        del self.known[id]
        return multiple()

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def remove_expired(self) -> None:
        self.store.remove_expired(self.now)
        self.known = {id: entry for id, entry in self.known.items() if entry.used_at > self.now - _SECONDS}

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self._open()

    # ── what always holds ────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def is_the_same(self) -> None:
        for owner in ("a", "b"):
            mine = [entry for entry in self.known.values() if entry.owner == owner]
            assert self.store.used_by(owner) == sum(entry.size for entry in mine)
        for id, entry in self.known.items():
            for owner in ("a", "b"):
                self._compare(owner, id, entry)

    def _compare(self, owner: str, id: str, entry: _Entry) -> None:
        is_found = self._found(owner, id) is not None
        try:
            if isinstance(entry.record, StoredResponse):
                assert self.store.response(owner, id, self.now) == entry.record
            else:
                assert self.store.conversation(owner, id, self.now) == entry.record
                assert self.store.items(owner, id, self.now) == entry.items
        except NotFound:
            assert not is_found
        else:
            assert is_found


TestStored = Stored.TestCase
TestStored.settings = settings(examples(60), stateful_step_count=30)


def test_no_more_is_read_at_once_than_a_body_may_have(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "db", most_bytes=10**6, most_read=1000, seconds=_SECONDS)
    talk = Conversation(id="conv_1", created_at=0)
    store.add_conversation("a", talk, [{"id": "m1", "text": "x" * 700}], 0)
    assert len(store.items("a", "conv_1", 0)) == 1
    store.add_items("a", "conv_1", [{"id": "m2", "text": "x" * 700}], 0)
    with pytest.raises(InvalidRequest) as refused:
        store.items("a", "conv_1", 0)
    assert refused.value.param == "conversation"
    for id, previous in (("resp_1", None), ("resp_2", "resp_1")):
        item = {"id": f"m_{id}", "text": "x" * 600}
        store.add_response("a", StoredResponse(id=id, previous=previous, input=[item], response={"output": []}), 0)
    assert len(store.chain("a", "resp_1", 0)) == 1
    with pytest.raises(InvalidRequest) as refused:
        store.chain("a", "resp_2", 0)
    assert refused.value.param == "previous_response_id"
    store.close()


def _ids(items: Iterable[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in items]


def test_pages_in_both_orders() -> None:
    items = [{"id": str(number)} for number in range(5)]
    newest, more = Page(limit=2).of(items)
    assert _ids(newest) == ["4", "3"] and more
    rest, more = Page(after="3", limit=3).of(items)
    assert _ids(rest) == ["2", "1", "0"] and not more
    assert _ids(Page(after="1", limit=9, ascending=True).of(items)[0]) == ["2", "3", "4"]
    with pytest.raises(InvalidRequest) as refused:
        Page(after="9").of(items)
    assert refused.value.param == "after"

"""`previous_response_id`, `/v1/responses/{id}` and `/v1/conversations`, by the `openai` package unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server import Server, events
from tests.tiers import full


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with _client(server) as client:
        yield client


def _client(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _is_stored(response: Any) -> bool:
    """A field that the package does not declare."""
    stored: bool = response.store
    return stored


def _count(server: Server, **body: Any) -> int:
    response = server.client.post("/v1/responses/input_tokens", json=body)
    assert response.status_code == 200, response.text
    count: int = response.json()["input_tokens"]
    return count


def _refused(response: httpx.Response) -> tuple[int, str | None]:
    error = response.json()["error"]
    return response.status_code, error["param"]


def test_a_response_continues_another(server: Server, client: openai.OpenAI) -> None:
    first = client.responses.create(model="fake", input="say: blue", instructions="Be brief.", temperature=0)
    assert _is_stored(first) and first.output_text == "blue"
    second = client.responses.create(model="fake", input="say: red", previous_response_id=first.id)
    assert second.output_text == "red" and second.previous_response_id == first.id
    third = client.responses.create(model="fake", input="say: green", previous_response_id=second.id)
    turns = [_user("say: blue"), {"role": "assistant", "content": "blue"}, _user("say: red")]
    turns += [{"role": "assistant", "content": "red"}, _user("say: green")]
    # Instructions are those of the last request only, as at OpenAI.
    assert third.usage is not None and third.usage.input_tokens == _count(server, input=turns)
    assert _count(server, input="say: green", previous_response_id=second.id) == _count(server, input=turns)

    assert client.responses.retrieve(first.id).model_dump() == first.model_dump()
    (item,) = client.responses.input_items.list(third.id).data
    assert item.type == "message"
    (part,) = item.model_dump(exclude_none=True)["content"]
    assert part == {"type": "input_text", "text": "say: green"}

    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError, match=rf"{first.id}.*{second.id}") as broken:
        client.responses.create(model="fake", input="x", previous_response_id=third.id)
    assert broken.value.param == "previous_response_id"


def test_a_stream_is_stored_too(server: Server, client: openai.OpenAI) -> None:
    with client.responses.create(model="fake", input="say: blue", stream=True) as stream:
        seen = list(stream)
    created, completed = seen[0], seen[-1]
    assert created.type == "response.created" and completed.type == "response.completed"
    assert _is_stored(completed.response)
    assert client.responses.retrieve(created.response.id).output_text == "blue"
    response = server.client.post("/v1/responses", json={"input": "x", "stream": True, "store": False})
    *_, (_, last) = events(response)
    assert not json.loads(last)["response"]["store"]


def test_a_conversation_collects_input_and_output(server: Server, client: openai.OpenAI) -> None:
    talk = client.conversations.create(metadata={"topic": "colours"}, items=[_user("say: white")])  # type: ignore[list-item]
    one = client.responses.create(model="fake", input="say: blue", conversation=talk.id)
    two = client.responses.create(model="fake", input="say: red", conversation={"id": talk.id})
    assert two.conversation is not None and two.conversation.id == talk.id
    items = client.conversations.items.list(talk.id, order="asc").data
    texts = [item.model_dump()["content"][0]["text"] for item in items]
    assert texts == ["say: white", "say: blue", "blue", "say: red", "red"]
    assert one.usage is not None and two.usage is not None
    assert two.usage.input_tokens > one.usage.input_tokens

    page = client.conversations.items.list(talk.id, limit=2)
    assert [item.id for item in page.data] == [items[4].id, items[3].id] and page.has_more
    assert [item.id for item in client.conversations.items.list(talk.id)] == [item.id for item in reversed(items)]
    added = client.conversations.items.create(talk.id, items=[_user("say: gold")])  # type: ignore[list-item]
    new = added.data[0].id
    assert new is not None
    assert client.conversations.items.retrieve(new, conversation_id=talk.id).id == new
    client.conversations.items.delete(new, conversation_id=talk.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(new, conversation_id=talk.id)
    assert client.conversations.update(talk.id, metadata={"topic": "hues"}).metadata == {"topic": "hues"}
    assert client.conversations.delete(talk.id).deleted
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.create(model="fake", input="x", conversation=talk.id)
    assert gone.value.param == "conversation"
    assert client.responses.retrieve(two.id).output_text == "red", "responses are kept"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"previous_response_id": "resp_none"}, 404, "previous_response_id"),
        ({"conversation": "conv_none"}, 404, "conversation"),
        ({"previous_response_id": "resp_none", "conversation": "conv_none"}, 400, "conversation"),
        ({"previous_response_id": "resp_none", "receipt": True, "deterministic": True}, 400, "receipt"),
        ({"previous_response_id": ""}, 400, "previous_response_id"),
        ({"conversation": {"id": 7}}, 400, None),
        ({"store": "yes"}, 400, "store"),
        ({"background": True}, 400, "background"),
    ],
    ids=str,
)
def test_refusals(server: Server, body: dict[str, Any], status: int, param: str | None) -> None:
    refused = _refused(server.client.post("/v1/responses", json={"input": "x", **body}))
    assert refused[0] == status
    assert param is None or refused[1] == param


def test_what_cannot_be_asked_of_a_stored_response(server: Server, client: openai.OpenAI) -> None:
    id = client.responses.create(model="fake", input="x").id
    assert _refused(server.client.get(f"/v1/responses/{id}?stream=true")) == (400, "stream")
    assert _refused(server.client.get(f"/v1/responses/{id}/input_items?after=msg_none")) == (400, "after")
    cancelled = server.client.post(f"/v1/responses/{id}/cancel")
    assert cancelled.status_code == 400 and "background" in cancelled.json()["error"]["message"]
    assert server.client.post("/v1/conversations", json={"items": [{"role": "nobody"}]}).status_code == 400


def test_without_store_nothing_is_kept(client: openai.OpenAI) -> None:
    response = client.responses.create(model="fake", input="x", store=False)
    assert not _is_stored(response)
    with pytest.raises(openai.NotFoundError, match="store"):
        client.responses.create(model="fake", input="x", previous_response_id=response.id)


def test_they_outlive_the_server_and_belong_to_a_key(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"server": {"keys": {name: {"key": f"key-{name}"} for name in "ab"}}}))
    arguments = ("--config", str(config), "-m", "fake:", "--data-dir", str(tmp_path / "data"))
    with Server(*arguments) as server, _client(server, "key-a") as client:
        first = client.responses.create(model="fake", input="say: blue")
        talk = client.conversations.create()
        server.process.kill()
        server.process.wait()
    with Server(*arguments) as server, _client(server, "key-a") as client, _client(server, "key-b") as other:
        assert client.responses.retrieve(first.id).output_text == "blue"
        assert client.conversations.retrieve(talk.id).id == talk.id
        for refused in (
            lambda: other.responses.retrieve(first.id),
            lambda: other.responses.delete(first.id),
            lambda: other.responses.create(model="fake", input="x", previous_response_id=first.id),
            lambda: other.conversations.retrieve(talk.id),
            lambda: other.conversations.delete(talk.id),
        ):
            with pytest.raises(openai.NotFoundError):
                refused()


def test_a_server_that_stores_nothing() -> None:
    with Server("-m", "fake:", "--no-store-responses") as server:
        stored = server.client.post("/v1/responses", json={"input": "say: x", "store": True}).json()
        assert stored["store"] is False
        continued = server.client.post("/v1/responses", json={"input": "x", "previous_response_id": stored["id"]})
        assert continued.status_code == 501 and "--no-store-responses" in continued.json()["error"]["message"]
        assert server.client.get("/v1/conversations/conv_x").status_code == 501


@full
def test_a_data_folder_that_another_server_uses(tmp_path: Path) -> None:
    """What nobody asked to store is answered all the same."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    with Server("-m", "fake:", env=env) as first, Server("-m", "fake:", env=env) as second:
        assert first.client.post("/v1/responses", json={"input": "say: x"}).json()["store"] is True
        answer = second.client.post("/v1/responses", json={"input": "say: x"})
        assert answer.status_code == 200 and answer.json()["store"] is False
        required = second.client.post("/v1/responses", json={"input": "say: x", "store": True})
        assert required.status_code == 503 and "--data-dir" in required.json()["error"]["message"]

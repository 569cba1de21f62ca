from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from paddock_lab.client import Address, ChatFailed, get, stream
from tests.lab.stand_in import KEY, stand_in, url_of

_BODY = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:1", Address("h", 1)),
        ("http://h/v1/", Address("h", 80)),
        ("https://h/api/v1", Address("h", 443, tls=True, base="/api")),
        ("https://h:8443", Address("h", 8443, tls=True)),
    ],
)
def test_an_address_is_what_stands_before_v1(url: str, address: Address) -> None:
    assert Address.of(url) == address
    assert Address.of(address.url("/v1")) == address


def test_a_key_is_sent_and_chunks_are_read_and_a_refusal_tells_its_status() -> None:
    with stand_in("Hay", " and", " oats") as server:
        address = Address.of(url_of(server))
        known = replace(address, api_key=KEY)
        assert asyncio.run(get(address, "/v1/models"))["data"][0]["id"] == "stand-in"
        answer = asyncio.run(stream(known, _BODY, usage=False))
        assert (answer.text, answer.finish_reason, answer.prompt_tokens) == ("Hay and oats", "stop", None)
        for refused, usage, status in ((address, False, 401), (known, True, 400)):
            with pytest.raises(ChatFailed) as caught:
                asyncio.run(stream(refused, _BODY, usage=usage))
            assert caught.value.status == status
    assert KEY not in repr(known)


def test_an_answer_without_a_word_is_a_failure_unless_it_may_be_one() -> None:
    with stand_in() as server:
        address = replace(Address.of(url_of(server)), api_key=KEY)
        with pytest.raises(ChatFailed):
            asyncio.run(stream(address, _BODY, usage=False))
        answer = asyncio.run(stream(address, _BODY, usage=False, may_be_empty=True))
        assert (answer.text, answer.deltas, answer.finish_reason) == ("", [], "stop")
        assert answer.first_token == answer.done - answer.sent

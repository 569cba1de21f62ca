"""API keys: where they come from, when they expire, and what wrong keys cost."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request

from paddock.config import KeySettings, ServerSettings
from paddock.errors import AuthenticationError, StartupError, TooManyFailures
from paddock.gateway.auth.gate import Gate
from paddock.gateway.auth.keys import hashed_keys, read_keys
from paddock.gateway.auth.usage import UsageBook
from paddock.types import Origin
from tests.server import Server


def test_keys_come_from_flags_files_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team's\n  third \n\n")
    settings = ServerSettings(
        api_keys=["first", "zweiter Schlüssel"],
        api_key_file=file,
        keys={
            "anna": KeySettings(key="anna-key", tenant="acme", weight=2, priority="batch"),
            "ben": KeySettings(hash="sha256:" + "0" * 64, share_prefixes=False),
            "cleo": KeySettings(key="cleo-key", tenant="acme", share_prefixes=False, admin=True),
        },
    )
    keys = {key.caller.name: key for key in read_keys(settings)}
    assert list(keys) == ["api-key-1", "api-key-2", "api-key-3", "anna", "ben", "cleo"]
    assert [key.caller.admin for key in keys.values()] == [True, True, True, False, False, True]
    assert keys["api-key-3"].digest == hashlib.sha256(b"third").digest()
    assert keys["ben"].digest == bytes(32)
    assert keys["anna"].caller.origin == Origin("anna", "acme", 2.0, batch=True)
    tenants = [key.caller.origin.tenant for key in keys.values()]
    assert tenants == ["", "", "", "acme", "/ben", "acme/cleo"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"api_keys": ["a", "a"]}, "'api-key-1' and 'api-key-2' are the same"),
        ({"api_keys": ["a"], "keys": {"anna": {"key": "a"}}}, "'api-key-1' and 'anna' are the same"),
        ({"api_keys": ["a"], "keys": {"api-key-1": {"key": "b"}}}, "two API keys are named 'api-key-1'"),
        ({"api_keys": [""]}, "empty"),
        ({"api_keys": ["a", " b"]}, "'api-key-2' starts or ends with a space"),
        ({"keys": {"anna": {"key": "b\n"}}}, "'anna' starts or ends with a space"),
    ],
)
def test_invalid_keys(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(StartupError, match=problem):
        read_keys(ServerSettings.model_validate(settings))


def test_a_key_file_without_keys_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    with pytest.raises(StartupError, match="no key in the API key file"):
        read_keys(ServerSettings(api_key_file=tmp_path / "keys"))


def test_keys_may_have_any_characters(tmp_path: Path) -> None:
    with Server("-m", "fake:", "--api-key", "schlüssel,ключ") as server:
        for key in ("schlüssel", "ключ"):
            headers = {b"authorization": f"Bearer {key}".encode()}
            assert server.client.get("/v1/models", headers=headers).status_code == 200
        assert server.client.get("/v1/models", headers={"x-api-key": "schl"}).status_code == 401


def _sha256(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _request(key: str, address: str = "10.0.0.9") -> Request:
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "client": (address, 1),
        "headers": [(b"authorization", f"Bearer {key}".encode())], "endpoint": "endpoint",
    }  # fmt: skip
    return Request(scope)


def _gate(keys: dict[str, Any], clock: Callable[[], float] = lambda: 0.0) -> Gate:
    gate = Gate(read_keys(ServerSettings.model_validate({"keys": keys})), UsageBook(), clock)
    gate.guard({"endpoint": "key"})
    return gate


async def _admits(gate: Gate, key: str, address: str = "10.0.0.9") -> bool:
    try:
        await gate(_request(key, address))
    except AuthenticationError:
        return False
    return True


def test_a_key_works_until_it_expires_and_both_work_while_it_is_replaced() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC).timestamp()]
    old = {"hash": _sha256("old"), "expires_at": "2026-01-02T00:00:00Z"}
    gate = _gate({"anna": {"hash": _sha256("new"), "expires_at": "2026-01-03T01:00:00+01:00", "previous": [old]}},
                 lambda: now[0])  # fmt: skip
    caller = read_keys(ServerSettings.model_validate({"keys": {"anna": {"hash": _sha256("new")}}}))[0].caller

    def admitted() -> list[bool]:
        return [asyncio.run(_admits(gate, key)) for key in ("old", "new", "other")]

    assert admitted() == [True, True, False]
    now[0] += 86400
    assert admitted() == [False, True, False]
    assert gate.still_admits(caller)
    now[0] += 86400
    assert admitted() == [False, False, False]
    assert not gate.still_admits(caller), "streams of the live view end with the key"


def test_a_time_without_a_zone_isrefusal_of() -> None:
    with pytest.raises(ValueError, match="timezone"):
        ServerSettings.model_validate({"keys": {"a": {"key": "a-key", "expires_at": "2026-01-02T00:00:00"}}})


def test_an_address_with_wrong_keys_has_to_wait() -> None:
    async def scenario() -> None:
        gate = _gate({"anna": {"key": "right"}})
        assert await _admits(gate, "right", "10.0.0.1")
        for address in ("10.0.0.1", "10.0.0.2"):
            for _ in range(10):
                assert not await _admits(gate, "wrong", address)
            with pytest.raises(TooManyFailures) as refused:
                await gate(_request("wrong", address))
            assert refused.value.retry_after is not None and 0 < refused.value.retry_after <= 6
        assert await _admits(gate, "right", "10.0.0.1"), "an address with a correct key is not locked out"
        with pytest.raises(TooManyFailures):
            await gate(_request("right", "10.0.0.2"))
        assert await _admits(gate, "right", "10.0.0.3")

    asyncio.run(scenario())


def test_hashed_keys_are_equal_and_do_not_contain_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("from-a-file\n")
    settings = ServerSettings.model_validate({
        "api_keys": ["plain-one"], "api_key_file": str(file),
        "keys": {"anna": {"key": "anna-key", "models": ["x"], "requests_per_minute": 3,
                          "previous": [{"key": "anna-old", "expires_at": "2030-01-01T00:00:00Z"}]}},
    })  # fmt: skip
    hashed = ServerSettings(keys=hashed_keys(settings))
    assert sorted(map(str, read_keys(hashed))) == sorted(map(str, read_keys(settings)))
    written = hashed.model_dump_json()
    assert not [key for key in ("plain-one", "from-a-file", "anna-key", "anna-old") if key in written]

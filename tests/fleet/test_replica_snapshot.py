"""What the live view shows of a replica."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet import ModelRecord, ModelStatus, ReplicaSnapshot
from paddock.fleet.lifecycle.replica_snapshot import renumbered, replica_snapshot
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.routing import Load
from paddock.tally import Tally
from paddock.types import SlotView
from tests.options import new_model

SERVER = ReplicaStatus("a", "server", "ready", "llama.cpp", "b1", Load(0, 0, 4))

MODEL = new_model("m#a", "fake:")


def seen(**status: Any) -> ReplicaSnapshot:
    return replica_snapshot(replace(SERVER, **status))


def worker(**status: Any) -> ReplicaSnapshot:
    """A local worker, whose lifecycle has this status."""
    return replica_snapshot(replace(SERVER, kind="worker"), ModelStatus(MODEL, **status))


def test_states_of_a_worker() -> None:
    assert worker(state="unloaded").state == "unloaded"
    assert worker(state="unloaded", failure="SIGKILL").state == "down"
    loading = worker(state="loading", progress=0.5, failure="SIGKILL")
    assert (loading.state, loading.progress, loading.reason) == ("loading", 0.5, "")
    assert worker(state="loaded").state == worker(state="unloading").state == "ready"


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ({}, "ready", ""),
        ({"health": "unready"}, "loading", ""),
        ({"health": "down"}, "down", ""),
        ({"failure": "500", "failures": 1}, "ready", ""),
        ({"failure": "500", "failures": 2, "retry_after": 1.0}, "down", "500"),
        ({"failure": "/props has no n_ctx"}, "down", "/props has no n_ctx"),
    ],
)
def test_states_of_a_server(status: dict[str, Any], state: str, reason: str) -> None:
    assert (seen(**status).state, seen(**status).reason) == (state, reason)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 8))
def test_more_requests_than_slots_wait(running: int, waiting: int, slots: int) -> None:
    found = seen(load=Load(running, waiting, slots))
    assert found.running + found.waiting == running + waiting
    assert found.running <= slots or not slots


def test_counters_of_a_worker_and_of_a_server() -> None:
    unknown = seen(tokens=7)
    assert (unknown.prompt_tokens, unknown.cached_tokens, unknown.answered_tokens) == (None, None, 7)
    scraped = {"llamacpp:prompt_tokens_total": 30.0, "llamacpp:prompt_tokens_cached_total": 10.0}
    assert (seen(scraped=scraped).prompt_tokens, seen(scraped=scraped).cached_tokens) == (30, 10)
    record = ModelRecord(Tally(prompt_tokens=3, cached_tokens=1, generated_tokens=5))
    found = replica_snapshot(replace(SERVER, kind="worker"), ModelStatus(MODEL, "loaded"), record)
    assert (found.prompt_tokens, found.cached_tokens, found.answered_tokens) == (3, 1, 5)


def test_slots_of_several_workers_have_different_ids() -> None:
    groups = [[SlotView(0, key="a"), SlotView(1)], [], [SlotView(0, key="b")]]
    slots = renumbered(groups)
    assert [(slot.id, slot.key) for slot in slots] == [(0, "a"), (1, ""), (2, "b")]

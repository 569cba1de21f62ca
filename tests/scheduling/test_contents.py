"""What the cache says it keeps, and clearing it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling.harness import Harness, Texts

Asked = st.lists(st.tuples(st.sampled_from(["", "a", "b"]), Texts), min_size=1, max_size=6)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("unified", [True, False])
@given(asked=Asked, tenant=st.sampled_from([None, "", "a", "b"]))
def test_clearing_drops_what_is_meant_and_nothing_else(
    unified: bool, whole: bool, asked: list[tuple[str, str]], tenant: str | None
) -> None:
    harness = Harness(kv_unified=unified, whole=whole)
    for id, (owner, text) in enumerate(asked):
        harness.ask(id, text, max_tokens=3, namespace=owner)
    harness.run()
    cache = harness.scheduler.cache
    before = {one.tenant: one for one in cache.contents()}
    assert sum(one.host_bytes for one in before.values()) <= cache.stored_bytes
    cache.clear(tenant)
    harness.run()  # applies the operations, and checks the accounts against the engine
    after = {one.tenant: one for one in cache.contents()}
    kept = {} if tenant is None else {owner: one for owner, one in before.items() if owner != tenant}
    assert after == kept
    harness.ask(99, "ab" * 20, max_tokens=3, namespace="a")
    harness.run()
    assert harness.finished[99, 0]

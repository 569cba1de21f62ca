from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest, PaddockError, QueueFull, ReplicaLost, ReplicaUnreachable, WorkerCrashed
from paddock.replicas.retries import Retries

_errors = st.sampled_from([WorkerCrashed, ReplicaLost, ReplicaUnreachable, QueueFull, InvalidRequest])


@given(st.integers(2, 8), st.integers(1, 5), st.lists(_errors, max_size=20))
def test_a_request_crashes_only_one_replica(most: int, restarts: int, errors: list[type[PaddockError]]) -> None:
    retries = Retries(most, restarts)
    attempted: list[tuple[str, type[PaddockError]]] = []
    for number, error in enumerate(errors):
        replica = retries.only or str(number)
        attempted.append((replica, error))
        if not retries.allow(error("failed"), replica):
            break
    assert len(attempted) <= most + restarts + 1
    crashed = [replica for replica, error in attempted if error is WorkerCrashed]
    assert len(crashed) <= restarts + 1 and len(set(crashed)) <= 1
    assert sum(error is ReplicaLost for _, error in attempted) <= 2


def test_a_crash_is_retried_on_the_same_replica() -> None:
    retries = Retries(4)
    assert retries.allow(QueueFull("full"), "a")
    assert retries.allow(WorkerCrashed("gone"), "b")
    assert retries.only == "b"
    assert not retries.allow(QueueFull("full"), "b")

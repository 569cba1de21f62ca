"""The CPUs, the priority and the waiting of a model's threads: from the settings to the threads of its worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ModelSettings
from paddock.config.fields import cpus_of_mask, cpus_of_range
from paddock.engine.threads import pool_params
from paddock.errors import StartupError
from paddock.fleet.catalogue import options
from paddock.fleet.process.environment import environment
from paddock.types import EngineOptions
from tests.options import engine_options
from tests.server import Server

_HERE = sorted(os.sched_getaffinity(0))


def _options(**settings: Any) -> EngineOptions:
    return options.engine_options(ModelSettings(**settings), verbose=False)


@given(st.sets(st.integers(0, 511), min_size=1), st.booleans(), st.booleans())
def test_a_mask_names_its_cpus(cpus: set[int], prefixed: bool, upper: bool) -> None:
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    assert cpus_of_mask(("0x" if prefixed else "") + (digits.upper() if upper else digits)) == cpus


def test_a_range_names_its_cpus() -> None:
    assert cpus_of_range("2-4") == {2, 3, 4}
    assert cpus_of_range("-1") == {0, 1}
    assert cpus_of_range("510-") == {510, 511}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cpu_mask": "xyz"}, "expected a hexadecimal mask"),
        ({"cpu_mask": "0"}, "it has no CPU"),
        ({"cpu_mask": "f" * 129}, "less than 512"),
        ({"cpu_range": "3"}, "expected a range of CPUs"),
        ({"cpu_range": "4-2"}, "it has no CPU"),
        ({"prio": 4}, "less than or equal to 3"),
        ({"poll": 101}, "less than or equal to 100"),
    ],
)
def test_a_wrong_value_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ModelSettings(**settings)


def test_cpus_that_this_machine_has_not_are_refused() -> None:
    with pytest.raises(StartupError, match="cpu_mask, cpu_range: 500-511 has no CPU that this process may use"):
        _options(cpu_range="500-511")


def test_there_are_never_more_threads_than_cpus() -> None:
    first = f"{_HERE[0]}-{_HERE[0]}"
    made = _options(n_threads=3, n_threads_batch=2, cpu_range=first)
    assert (made.cpus, made.cpus_batch, made.n_threads, made.n_threads_batch) == ((_HERE[0],), (_HERE[0],), 1, 1)
    made = _options(n_threads=3, cpu_range=first, cpu_range_batch="0-511")
    assert (made.n_threads, made.n_threads_batch) == (1, min(3, len(_HERE)))
    made = _options(n_threads=3)
    assert (made.cpus, made.n_threads, made.n_threads_batch) == ((), 3, None)


def test_thread_pools_by_value() -> None:
    made = engine_options(
        n_threads=2, n_threads_batch=3, cpus=(1, 4), cpus_batch=(0, 2, 511), cpu_strict=True, cpu_strict_batch=False,
        prio=1, prio_batch=-1, poll=7,
    )  # fmt: skip
    one, many = pool_params(made), pool_params(made, batch=True)
    assert [cpu for cpu in range(512) if one.cpumask[cpu]] == [1, 4]
    assert [cpu for cpu in range(512) if many.cpumask[cpu]] == [0, 2, 511]
    assert (one.n_threads, one.strict_cpu, one.prio, one.poll) == (2, True, 1, 7)
    assert (many.n_threads, many.strict_cpu, many.prio, many.poll) == (3, False, -1, 7)
    assert pool_params(engine_options(n_threads=2)).poll == 50


def test_prompts_have_the_same_threads_by_default() -> None:
    made = _options(cpu_range=f"{_HERE[0]}-{_HERE[0]}", cpu_strict=True, prio=2)
    assert (made.cpu_strict_batch, made.prio_batch, made.cpus_batch) == (True, 2, made.cpus)
    assert bytes(pool_params(made)) == bytes(pool_params(made, batch=True))


def test_the_environment_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_PROC_BIND"):
        monkeypatch.delenv(name, raising=False)
    everywhere = engine_options(n_threads=os.cpu_count())
    assert "GOMP_SPINCOUNT" not in environment(everywhere)
    assert environment(engine_options(poll=50))["GOMP_SPINCOUNT"] == "300000"
    assert environment(engine_options(poll=0))["GOMP_SPINCOUNT"] == "0"
    assert ("OMP_PROC_BIND" in environment(everywhere)) == ((os.cpu_count() or 1) > 1)
    assert "OMP_PROC_BIND" not in environment(engine_options(n_threads=os.cpu_count(), cpus=(0,)))
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    assert environment(engine_options(poll=0))["GOMP_SPINCOUNT"] == "5"


def _threads(server: Server) -> list[tuple[set[int], int]]:
    """The CPUs and the scheduler's policy of each thread of the worker."""
    ids = [int(task) for worker in server.workers() for task in os.listdir(f"/proc/{worker}/task")]
    return [(os.sched_getaffinity(id), os.sched_getscheduler(id)) for id in ids]


@pytest.mark.skipif(len(_HERE) < 2, reason="one CPU is no choice")
def test_the_threads_of_a_worker_are_where_the_flags_say(tiny_models: dict[str, Path]) -> None:
    flags = ["-Cr", f"{_HERE[0]}-{_HERE[1]}", "--cpu-strict", "1", "-t", "2", "--prio", "-1", "--poll", "10"]
    with Server("-m", str(tiny_models["llama"]), *flags) as server:
        response = server.client.post("/completion", json={"prompt": "the", "n_predict": 4})
        assert response.status_code == 200, response.text
        threads = _threads(server)
        for cpu in _HERE[:2]:
            assert ({cpu}, os.SCHED_BATCH) in threads

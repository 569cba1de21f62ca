"""GPUs in `/metrics`. A missing or hanging driver does not block a scrape."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paddock.fleet import Catalogue, Fleet
from paddock.gateway.http.request_counts import HTTPCounts
from paddock.gateway.ops.metrics.gpus import Gpus, Reader
from paddock.gateway.ops.metrics.nvml import Gpu, Nvml, NvmlError
from paddock.gateway.ops.metrics.page import MetricsPage
from tests.options import new_model
from tests.server import Server

H200 = Gpu(0, "NVIDIA H200", "GPU-5a", 0.87, 9 * 2**30, 141 * 2**30)
PART = Gpu(1, "a MIG slice", "MIG-1", None, 2**30, 10 * 2**30)


class FakeReader:
    """Returns the given GPUs and counts the calls."""

    def __init__(self, *found: Gpu, fails: bool = False) -> None:
        self.found, self.fails = found, fails
        self.calls = 0

    def read(self) -> Sequence[Gpu]:
        self.calls += 1
        if self.fails:
            raise NvmlError("the GPU has fallen off the bus")
        return self.found


def _missing() -> Reader:
    raise NvmlError("no such library")


def _page(gpus: Gpus) -> dict[str, dict[str, float]]:
    """The GPU metrics of a page, by the index of the GPU."""

    async def scrape() -> str:
        fleet = Fleet(Catalogue([new_model("m", "fake:")]))
        try:
            return (await MetricsPage(fleet, HTTPCounts(), gpus).text()).decode()
        finally:
            await fleet.close()

    families = text_string_to_metric_families(asyncio.run(scrape()))
    return {
        family.name: {f"{sample.labels['gpu']} {sample.labels['name']}": sample.value for sample in family.samples}
        for family in families
        if family.name.startswith("paddock_gpu_")
    }


def test_memory_and_utilization_of_every_gpu() -> None:
    assert _page(Gpus(lambda: FakeReader(H200, PART))) == {
        "paddock_gpu_utilization_ratio": {"0 NVIDIA H200": 0.87},
        "paddock_gpu_memory_used_bytes": {"0 NVIDIA H200": 9 * 2**30, "1 a MIG slice": 2**30},
        "paddock_gpu_memory_total_bytes": {"0 NVIDIA H200": 141 * 2**30, "1 a MIG slice": 10 * 2**30},
    }


@pytest.mark.parametrize("gpus", [Gpus(_missing), Gpus(lambda: FakeReader(fails=True)), Gpus(FakeReader)])
def test_without_gpus_the_metrics_are_absent(gpus: Gpus) -> None:
    assert _page(gpus) == {}


def test_concurrent_scrapes_call_the_driver_once() -> None:
    reader = FakeReader(H200)

    async def scenario() -> list[Sequence[Gpu]]:
        gpus = Gpus(lambda: reader)
        return await asyncio.gather(*(gpus.sample() for _ in range(20)))

    assert asyncio.run(scenario()) == [(H200,)] * 20
    assert reader.calls == 1


def test_a_missing_library_is_not_searched_at_every_scrape() -> None:
    tried = []

    def missing() -> Reader:
        tried.append(1)
        return _missing()

    async def scenario() -> None:
        gpus = Gpus(missing)
        for _ in range(3):
            assert await gpus.sample() == ()

    asyncio.run(scenario())
    assert len(tried) == 1


def test_a_hanging_driver_uses_one_thread_and_delays_one_scrape() -> None:
    release = threading.Event()
    callers: list[int] = []

    class Hanging(FakeReader):
        def read(self) -> Sequence[Gpu]:
            callers.append(threading.get_ident())
            release.wait()
            return super().read()

    reader = Hanging(H200)

    async def scenario() -> None:
        gpus = Gpus(lambda: reader, patience=0.01)
        assert [await gpus.sample() for _ in range(3)] == [()] * 3
        assert len(callers) <= 1
        release.set()
        patient = Gpus(lambda: reader)
        assert await patient.sample() == (H200,)

    asyncio.run(scenario())
    assert len(callers) == 2


def test_a_server_shows_gpu_memory_only_with_nvml(fake_server: Server) -> None:
    text = fake_server.client.get("/metrics").text
    try:
        found = Nvml().read()
    except NvmlError:
        found = []
    assert text.count("\npaddock_gpu_memory_total_bytes{") == len(found)
    if not found:
        assert "paddock_gpu_" not in text


def test_a_missing_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", none_here)
    with pytest.raises(NvmlError, match=r"libnvidia-ml\.so\.1: cannot open"):
        Nvml()

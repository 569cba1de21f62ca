from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import open_engine
from paddock.engine.loading import unusual_context
from paddock.fleet.catalogue.headers import read_header
from paddock.fleet.memory.estimate import estimate
from tests.engine.harness import Harness
from tests.options import engine_options
from tests.server import Server
from tests.tiers import full


@given(st.integers(0, 1 << 20), st.integers(1, 64), st.integers(1, 1 << 20), st.booleans(), st.sampled_from([1, 2, 4]))
def test_an_unusual_context_is_logged(n_ctx: int, parallel: int, trained: int, unified: bool, scale: int) -> None:
    options = engine_options(n_ctx=n_ctx, parallel=parallel, rope_freq_scale=None if scale == 1 else 1 / scale)
    line, is_clamped = unusual_context(options, trained, unified=unified)
    wanted = n_ctx if unified else n_ctx // parallel
    assert bool(line) == (wanted > trained)
    assert is_clamped == (wanted > trained * scale)
    assert not line or (f"n_ctx {n_ctx} allows {wanted}" in line and f"trained for {trained}" in line)
    assert is_clamped == (f"at most {trained * scale}" in line)
    assert (f"scaled to {trained * scale}" in line) == (bool(line) and scale > 1)


def test_scaled_positions_extend_the_context_with_a_line(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    scaled: dict[str, Any] = {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "parallel": 1}
    trained = 2048
    for n_ctx, longest, words in ((4096, 4096, "<6>"), (0, 8192, ""), (10_000, 8192, "<4>")):
        capsys.readouterr()
        options = engine_options(n_ctx=n_ctx, is_default_ctx=False, **scaled)
        engine = open_engine(str(tiny_models["llama"]), options, lambda _: None)
        assert (engine.info.n_ctx, engine.info.n_ctx_train) == (longest, trained)
        engine.close()
        lines = [line for line in capsys.readouterr().err.splitlines() if "trained for" in line]
        assert [line[:3] for line in lines] == ([words] if words else [])
        estimated = estimate(read_header(tiny_models["llama"]), options, gpu=False)
        plain = estimate(read_header(tiny_models["llama"]), engine_options(n_ctx=trained, parallel=1), gpu=False)
        assert estimated.host.cache == plain.host.cache * longest // trained


@full
def test_a_context_beyond_the_trained_one_is_clamped_with_a_warning(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"])
    trained = harness.engine.info.n_ctx_train
    harness.close()
    with Server("-m", str(tiny_models["llama"]), "-c", str(trained + 4096), "-np", "1") as server:
        server.client.post("/completion", json={"prompt": "Once", "n_predict": 1})
        context = server.client.get("/props").json()["context"]
        assert context == {
            "requested": trained + 4096,
            "per_request": trained,
            "trained": trained,
            "is_clamped": True,
            "shift": False,
        }
        server.wait_for_line("warning", f"trained for {trained}")

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.loading import clamped_context
from tests.engine.harness import Harness
from tests.options import engine_options
from tests.server import Server
from tests.tiers import full


@given(st.integers(0, 1 << 20), st.integers(1, 64), st.integers(1, 1 << 20), st.booleans())
def test_a_clamped_context_is_logged(n_ctx: int, parallel: int, trained: int, unified: bool) -> None:
    line = clamped_context(engine_options(n_ctx=n_ctx, parallel=parallel), trained, unified=unified)
    assert bool(line) == ((n_ctx if unified else n_ctx // parallel) > trained)
    assert not line or (str(n_ctx) in line and f"at most {trained}" in line)


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
        }
        assert any("warning" in line and f"trained for {trained}" in line for line in server.output)

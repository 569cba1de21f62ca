"""The arithmetic behind two seams, and the only user of libllama."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paddock.engine.blocks import new_block as new_block
from paddock.engine.protocol import BrokenMedia, Engine, MediaReader, PooledEngine, ReadPrompt, Vocab
from paddock.types import EngineOptions


def open_engine(model_path: str, options: EngineOptions, on_progress: Callable[[float], None]) -> Engine:
    """Load a model: a GGUF file, or the fake for `fake:`. Raises `ModelLoadFailed`."""
    if model_path.startswith("fake:"):
        from paddock.engine.fake import FakeEngine

        return FakeEngine(model_path, options, on_progress)
    from paddock.engine.llama import LlamaEngine

    return LlamaEngine(Path(model_path), options, on_progress)


def load_libraries(model_path: str) -> None:
    """Load all native code that opening this model needs, and nothing of the model."""
    if not model_path.startswith("fake:"):
        import paddock.engine.llama
        import paddock.engine.pooled


def open_pooled_engine(model_path: str, options: EngineOptions, on_progress: Callable[[float], None]) -> PooledEngine:
    """The same for a model that makes vectors of whole inputs, in the way of `options.pooling`."""
    if model_path.startswith("fake:"):
        from paddock.engine.fake_pooled import FakePooledEngine

        return FakePooledEngine(model_path, options, on_progress)
    from paddock.engine.pooled import LlamaPooledEngine

    return LlamaPooledEngine(Path(model_path), options, on_progress)

"""`options`: the parameters of a request, and of names made by `/api/create`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from pydantic import Field, model_validator

from paddock.config import MOST_DRAFTED
from paddock.gateway.generation.fields import LARGEST, StopStrings
from paddock.gateway.generation.sampling_fields import SamplingFields
from paddock.gateway.http.fields import Fields

_INTEGERS: Final = frozenset(
    {"num_keep", "num_predict", "seed", "top_k", "repeat_last_n", "mirostat", "draft_num_predict", "min_keep"}
)


class WithoutEffect(Fields):
    """Ollama loads a model again for these, or has no sampler for them any more. Here the first are settings of the
    model.
    """

    num_ctx: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    numa: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    embedding_only: Any = None
    penalize_newline: Any = None
    tfs_z: Any = None


class Options(SamplingFields, WithoutEffect):
    """Ollama's names, and those of llama.cpp's other samplers."""

    stop: StopStrings | None = None
    num_keep: int | None = Field(None, ge=-1, le=LARGEST)
    num_predict: int | None = Field(None, ge=-(2**31), le=LARGEST)
    """The most tokens of the answer. 0 and less: up to the end of the context."""
    draft_num_predict: int | None = Field(None, ge=0, le=MOST_DRAFTED)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, data: Any) -> Any:
        """As in Ollama, a whole number may be written as a fraction."""
        if not isinstance(data, dict):
            return data
        whole = {
            name: int(data[name])
            for name in _INTEGERS & data.keys()
            if isinstance(data[name], float) and data[name].is_integer()
        }
        return data | whole

    @property
    def no_effect(self) -> list[str]:
        """Those that were sent and have no effect."""
        return sorted(name for name in WithoutEffect.model_fields if getattr(self, name) is not None)

    @property
    def given(self) -> dict[str, Any]:
        """Those with a value, as they can be stored."""
        return self.model_dump(mode="json", exclude_none=True)

    def over(self, base: Options | None) -> Options:
        """These, and those of the base for what they leave out."""
        if base is None:
            return self
        return base.model_copy(update={name: getattr(self, name) for name in self.given})

    def fields(self) -> dict[str, Any]:
        """The fields of a request that generates that they stand for."""
        found = {name: getattr(self, name) for name in SamplingFields.model_fields}
        found |= {"stop": self.stop, "n_keep": self.num_keep, "draft_n_max": self.draft_num_predict}
        if self.num_predict is not None:
            found["max_tokens"] = self.num_predict if self.num_predict > 0 else -1
        return {name: value for name, value in found.items() if value is not None}


def stored_options(parameters: Mapping[str, Any]) -> Options | None:
    """The options of a name. Raises `ValueError` if the file has other values than a request could."""
    return _parsed(msgspec.json.encode(parameters)) if parameters else None


@lru_cache(256)
def _parsed(encoded: bytes) -> Options:
    return Options.model_validate_json(encoded)

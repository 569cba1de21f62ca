"""The bodies of llama-server's own completions."""

from __future__ import annotations

from pydantic import Field

from paddock.gateway.generation.fields import LARGEST, GenerationFields, Prompts
from paddock.gateway.http.fields import Fields
from paddock.gateway.http.sizes import MOST_ANSWERS, MOST_FILES, MOST_RESPONSE_FIELDS


class NativeFields(GenerationFields):
    """The fields of `/completion` and `/infill`."""

    n_predict: int | None = Field(None, ge=-1, le=LARGEST)
    max_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    """Another name for `n_predict`."""
    n_probs: int | None = Field(None, ge=0, le=1024)
    n_cmpl: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    return_tokens: bool | None = None
    t_max_predict_ms: int | None = Field(None, ge=0, le=LARGEST)
    response_fields: list[str] | None = Field(None, max_length=MOST_RESPONSE_FIELDS)

    @property
    def limit(self) -> int:
        """The most tokens of the answer; -1: up to the end of the context."""
        given = self.n_predict if self.n_predict is not None else self.max_tokens
        return -1 if given is None else given


class NativeCompletionRequest(NativeFields):
    token_lists = frozenset({"prompt"})

    prompt: Prompts


class ExtraFile(Fields):
    """A file that is added to the prompt as context."""

    text: str
    filename: str = "tmp"


class InfillRequest(NativeFields):
    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] = Field([], max_length=MOST_FILES)
    prompt: str = ""
    """Follows the prefix."""
    spm_infill: bool | None = None
    """Paddock's own, for llama-server's option: the suffix comes before the prefix."""

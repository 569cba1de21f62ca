"""Settings of a model: its draft model and other guesses, for speculative decoding."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paddock.config.fields import (
    MOST_DRAFTED,
    MOST_GUESSED,
    MOST_LAYERS,
    Expanded,
    Flag,
    GpuLayers,
    Section,
    TensorOverride,
    layers_from_text,
    speculation_type,
)
from paddock.types import CacheType, SpeculationType


class DraftSettings(Section):
    """Speculative decoding of a model."""

    model_draft: Annotated[Expanded | None, Flag("-md", "--model-draft", "--spec-draft-model")] = None
    """The file of a small draft model with the same vocabulary, for speculative decoding. A relative path starts at
    `models_directory`, if that is set."""
    n_gpu_layers_draft: Annotated[
        GpuLayers,
        Flag("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl", convert=layers_from_text),
    ] = -1
    """Layers of the draft model on the GPU. -1 or `all`: all; `auto`: all, or with `fit` as many as fit."""
    device_draft: Annotated[list[str], Flag("-devd", "--device-draft", "--spec-draft-device", metavar="NAME,...")] = []
    """The devices of the draft model; `none`: no GPU. By default as `device`."""
    override_tensor_draft: Annotated[
        list[TensorOverride],
        Flag("-otd", "--override-tensor-draft", "--spec-draft-override-tensor", metavar="PATTERN=BUFFER,..."),
    ] = []
    """As `override_tensor`, for the draft model."""
    cpu_moe_draft: Annotated[bool, Flag("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe")] = False
    """Keep the weights of all experts of the draft model in host memory."""
    n_cpu_moe_draft: Annotated[
        int, Flag("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe", "--spec-draft-ncmoe")
    ] = Field(0, ge=0, le=MOST_LAYERS)
    """Keep the weights of the experts of the draft model's first layers in host memory."""
    cache_type_k_draft: Annotated[CacheType | None, Flag("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k")] = None
    """The data type of the draft model's cached keys. By default as `cache_type_k`."""
    cache_type_v_draft: Annotated[CacheType | None, Flag("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v")] = None
    """The data type of the draft model's cached values. By default as `cache_type_v`."""
    draft_max: Annotated[int, Flag("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max")] = Field(
        4, ge=0, le=MOST_DRAFTED
    )
    """The most tokens to draft at once."""
    draft_min: Annotated[int, Flag("--draft-min", "--draft-n-min", "--spec-draft-n-min")] = Field(
        0, ge=0, le=MOST_DRAFTED
    )
    """Drafts of fewer tokens are not checked."""
    draft_p_min: Annotated[float, Flag("--draft-p-min", "--spec-draft-p-min", metavar="P")] = Field(0.75, ge=0, le=1)
    """The draft ends before a token whose probability in the draft model is lower than this."""
    spec_type: Annotated[
        SpeculationType,
        BeforeValidator(speculation_type),
        Flag("--spec-type", metavar="none|ngram|draft|auto", convert=speculation_type),
    ] = "auto"
    """How several tokens are guessed and verified at once: `ngram` from earlier text, `draft` by the draft model,
    `auto` by both, while that saves time. Guesses do not decide what is sampled. But a step with guesses has another
    shape, which can change the last bits of the logits, and so the text; deterministic requests have no guesses.
    llama-server's names, such as `ngram-mod,draft-simple`, are understood."""
    ngram_max: Annotated[
        int,
        Flag(
            "--spec-ngram-mod-n-max",
            "--spec-ngram-simple-size-m",
            "--spec-ngram-map-k-size-m",
            "--spec-ngram-map-k4v-size-m",
        ),
    ] = Field(64, ge=0, le=MOST_GUESSED)
    """The most tokens to guess at once from earlier text; more than 64 count as 64."""

"""The JSON responses of a llama.cpp-compatible server: the fields that are used here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from paddock.types import ModelInfo, SlotState


class _Defaults(msgspec.Struct):
    n_ctx: int = 0


class Props(msgspec.Struct):
    default_generation_settings: _Defaults
    total_slots: int
    build_info: str = ""
    model_alias: str = ""
    model_path: str = ""
    model_ftype: str = ""
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    media_marker: str = "<__media__>"
    fingerprint: str | None = None
    """Only Paddock sends it; empty while the model is not loaded."""

    def info(self, meta: Mapping[str, Any]) -> ModelInfo:
        """Its model. `meta` is what llama-server reports about the file; Paddock does not need it."""
        return ModelInfo(
            description="",
            n_ctx=self.default_generation_settings.n_ctx,
            n_ctx_train=meta.get("n_ctx_train", 0),
            n_vocab=meta.get("n_vocab", 0),
            n_params=meta.get("n_params", 0),
            size_bytes=meta.get("size", 0),
            n_slots=self.total_slots,
            fingerprint=self.fingerprint if self.fingerprint is not None else self._derived_fingerprint(meta),
            engine=self.build_info,
            chat_template=self.chat_template,
            bos=self.bos_token,
            eos=self.eos_token,
        )

    def _derived_fingerprint(self, meta: Mapping[str, Any]) -> str:
        """For llama-server: derived from its build, its model file and its visible flags."""
        parts = [
            self.build_info,
            PurePath(self.model_path).name,
            self.model_ftype,
            sorted((name, value) for name, value in meta.items() if isinstance(value, int)),
            self.total_slots,
            self.default_generation_settings.n_ctx,
            self.chat_template,
        ]
        return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def engine_of(build_info: str) -> tuple[str, str]:
    """The name and version of a server. Paddock appends its engine once a model is loaded; that is not its version."""
    if build_info.startswith("paddock "):
        return "paddock", build_info.removeprefix("paddock ").partition(",")[0]
    return "llama.cpp", build_info or "unknown"


class _Model(msgspec.Struct):
    meta: dict[str, Any] | None = None


class Models(msgspec.Struct):
    data: list[_Model]


class Content(msgspec.Struct):
    content: str


class Rendered(msgspec.Struct):
    prompt: str


class TokenIds(msgspec.Struct):
    tokens: list[int]


class _Piece(msgspec.Struct):
    id: int
    piece: str | list[int]


class TokenPieces(msgspec.Struct):
    tokens: list[_Piece]


class Slot(msgspec.Struct):
    id: int
    n_ctx: int = 0
    is_processing: bool = False
    id_task: int = -1
    n_prompt_tokens: int = 0

    def state(self) -> SlotState:
        return msgspec.convert(self, SlotState, from_attributes=True)

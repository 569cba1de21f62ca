"""A harness for prompts with images or sound."""

from __future__ import annotations

from typing import Any

from paddock.scheduling import Request
from tests.engine.harness import Harness
from tests.engine.reference_media import reference_answer

EXACT = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
"""Batches of other sizes change no bit that matters."""
LAYOUTS = {"unified": {"kv_unified": True}, "streams": {"kv_unified": False}}


class Media(Harness):
    """Prompts with `<m>` for each file."""

    def ask_about(self, id: int, text: str, files: list[bytes], **fields: Any) -> Request:
        media = self.engine.media
        assert media is not None
        if not files:
            return self.ask(id, text, **fields)
        read = media.read(text.replace("<m>", media.marker), files, add_special=True)
        namespace = None if any(span.is_private for span in read.spans) else ""
        return self.ask(id, "", tokens=read.tokens, media=read.spans, **{"namespace": namespace} | fields)

    def reference(self, text: str, files: list[bytes], count: int = 12) -> list[int]:
        media = self.engine.media
        assert media is not None
        return reference_answer(self.engine, text.replace("<m>", media.marker), files, count)  # type: ignore[arg-type]

    @property
    def encoded(self) -> int:
        assert self.engine.media is not None
        return self.engine.media.encoded

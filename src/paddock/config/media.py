"""Settings of a model: its projector, for images and sound."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from paddock.config.fields import Expanded, Flag, Section


class MediaSettings(Section):
    """What a model reads besides text."""

    mmproj: Annotated[Expanded | None, Flag("-mm", "--mmproj")] = None
    """The file of the multimodal projector, with which the model reads images or audio. A relative path starts at
    `models_directory`, if that is set. By default a file `mmproj*.gguf` beside the model that fits it."""
    mmproj_auto: Annotated[bool, Flag("--mmproj-auto/--no-mmproj", " /--no-mmproj-auto")] = True
    """Use the projector beside the model. If false, only one that `mmproj` names."""
    mmproj_offload: Annotated[bool, Flag("--mmproj-offload/--no-mmproj-offload")] = True
    """Run the projector on the GPU, if layers of the model are there."""
    image_min_tokens: Annotated[int | None, Flag("--image-min-tokens")] = Field(None, ge=1)
    """The least tokens of an image, for models that choose the number by its size. By default as the projector says."""
    image_max_tokens: Annotated[int | None, Flag("--image-max-tokens")] = Field(None, ge=1)
    """The most tokens of an image, for models that choose the number by its size. By default as the projector says."""

    @model_validator(mode="after")
    def _ordered(self) -> MediaSettings:
        if self.image_min_tokens and self.image_max_tokens and self.image_min_tokens > self.image_max_tokens:
            raise ValueError(
                f"image_min_tokens is {self.image_min_tokens}, more than image_max_tokens, {self.image_max_tokens}"
            )
        return self

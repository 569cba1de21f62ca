"""What `paddock cluster` is told: the section `cluster`, and what is said of one model there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paddock.config.fields import Section, Size

Name = Annotated[str, Field(min_length=1)]


class PlacementSettings(Section):
    """How many replicas of a model there are on a cluster, and what each takes of its node."""

    min_replicas: int = Field(1, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    """As many as `min_replicas` unless given."""
    target_requests: float | None = Field(None, gt=0)
    """Under way or waiting for each replica; with more, one more is started. Unless given, as many as run at once."""
    upscale_delay: float = Field(10, ge=0)
    """Seconds for which there must have been more."""
    downscale_delay: float = Field(300, ge=0)
    """Seconds for which there must have been so few that one replica less would do."""
    cpus: float | None = Field(None, ge=0)
    """As many as `n_threads` unless given."""
    gpus: float | None = Field(None, ge=0)
    """Unless given, one where the cluster has any and the model has layers for it."""
    memory: Size | None = None
    """Of the host, as estimated from the model's file unless given."""
    resources: dict[Name, Annotated[float, Field(gt=0)]] = {}
    """More that a node must have, by the names under which it was started with them."""

    @model_validator(mode="after")
    def _consistent(self) -> PlacementSettings:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas is less than min_replicas")
        return self

    @property
    def most(self) -> int:
        return self.max_replicas or self.min_replicas


class ClusterSettings(Section):
    name: str = Field("paddock", pattern=r"^[a-z0-9]{1,32}$")
    """What its applications are called, or begin with. It has no hyphen, or it might be the beginning of others."""
    gateways: int = Field(1, ge=1)
    """How many processes answer HTTP. Each has limits, accounts and a memory of prefixes of its own."""
    proxies: Literal["every_node", "head_only"] = "every_node"
    """Which nodes listen for HTTP, and pass it on to the gateways."""
    upgrade_percent: float = Field(25, gt=0, le=100)
    """The most of a model's replicas that are exchanged at once when it is deployed anew."""

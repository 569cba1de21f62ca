"""The section `cluster`, and the cluster settings of one model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paddock.config.fields import Section, Size

Name = Annotated[str, Field(min_length=1)]


class PlacementSettings(Section):
    """How many replicas of a model `paddock cluster` starts, and what each takes of its node."""

    min_replicas: int = Field(1, ge=1)
    """The fewest replicas of the model."""
    max_replicas: int | None = Field(None, ge=1)
    """The most replicas of the model. By default `min_replicas`."""
    target_requests: float | None = Field(None, gt=0)
    """Requests per replica, running and waiting, above which one more replica is started. By default as many as one
    replica runs in parallel."""
    upscale_delay: float = Field(10, ge=0)
    """Seconds that the load must stay above the target before a replica is added."""
    downscale_delay: float = Field(300, ge=0)
    """Seconds that the load must stay low enough before a replica is removed."""
    cpus: float | None = Field(None, ge=0)
    """CPUs that Ray reserves for each replica. By default `n_threads`."""
    gpus: float | None = Field(None, ge=0)
    """GPUs that Ray reserves for each replica. By default one, if the cluster has any and the model has GPU layers."""
    memory: Size | None = None
    """Host memory that Ray reserves for each replica. By default estimated from the model's file."""
    resources: dict[Name, Annotated[float, Field(gt=0)]] = {}
    """Custom Ray resources that the node must have, by name."""

    @model_validator(mode="after")
    def _consistent(self) -> PlacementSettings:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas ({self.max_replicas}) is less than min_replicas ({self.min_replicas})")
        return self

    @property
    def most(self) -> int:
        return self.max_replicas or self.min_replicas


class ClusterSettings(Section):
    """How `paddock cluster` deploys the server on Ray."""

    name: str = Field("paddock", pattern=r"^[a-z0-9]{1,32}$")
    """The name, or the beginning of the name, of the Ray Serve applications. It has no hyphen, so that no other
    application's name can begin with it by accident."""
    gateways: int = Field(1, ge=1)
    """The number of processes that answer HTTP. Each has its own accounts and memory of prefixes, and enforces its
    share of each key's limits."""
    proxies: Literal["every_node", "head_only"] = "every_node"
    """The nodes that listen for HTTP and pass requests on to the gateways."""
    upgrade_percent: float = Field(25, gt=0, le=100)
    """The most replicas of a model, in percent, that are replaced at once when the model is deployed again."""

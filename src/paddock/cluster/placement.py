"""What one replica takes of its node, and how many there are: from what is said, and what a file's header tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paddock.config import PlacementSettings
from paddock.errors import StartupError
from paddock.fleet import Model

_PROCESSES = 256 * 2**20
"""Bytes that a replica's two processes take besides the model."""


@dataclass(frozen=True, slots=True)
class Placement:
    cpus: float
    gpus: float
    memory: int
    resources: dict[str, float]
    least: int
    most: int
    target_requests: float
    upscale_delay: float
    downscale_delay: float

    @property
    def actor_options(self) -> dict[str, Any]:
        """As Ray wants to be told."""
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "memory": self.memory}
        return options | ({"resources": self.resources} if self.resources else {})

    @property
    def replicas(self) -> dict[str, Any]:
        if self.least == self.most:
            return {"num_replicas": self.least}
        scaling = {
            "min_replicas": self.least,
            "initial_replicas": self.least,
            "max_replicas": self.most,
            "target_ongoing_requests": self.target_requests,
            "upscale_delay_s": self.upscale_delay,
            "downscale_delay_s": self.downscale_delay,
            # Averaged over no longer than is waited for, as far as Ray allows: it hears of loads every ten seconds.
            "look_back_period_s": min(30.0, max(10.5, self.upscale_delay)),
        }
        return {"autoscaling_config": scaling}


def placement(model: Model, said: PlacementSettings, *, gpus_there: bool) -> Placement:
    """Raises `StartupError` where its memory is neither said nor to be found out."""
    options = model.options
    gpus = said.gpus
    if gpus is None:
        gpus = 1.0 if gpus_there and (options.n_gpu_layers != 0 or model.auto_layers) else 0.0
    memory = said.memory
    if memory is None:
        estimate = model.estimate(gpu=gpus > 0)
        if estimate is None and not model.is_fake:
            raise StartupError(
                f"the memory that {model.name} takes is not known here ({model.problem()}): "
                "say it as cluster.memory of the model"
            )
        memory = _PROCESSES + (estimate.host.total + estimate.prefixes if estimate is not None else 0)
    return Placement(
        cpus=said.cpus if said.cpus is not None else options.n_threads,
        gpus=gpus,
        memory=memory,
        resources=dict(said.resources),
        least=said.min_replicas,
        most=said.most,
        target_requests=said.target_requests or options.parallel,
        upscale_delay=said.upscale_delay,
        downscale_delay=said.downscale_delay,
    )

"""The resources of a replica and the number of replicas, from the settings and the model's header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.config import PlacementSettings
from paddock.errors import StartupError
from paddock.fleet import Model

_UNITS = {"memory": "GiB of memory"}
_PROCESSES = 256 * 2**20
"""Bytes of a replica's two processes without the model."""


@dataclass(frozen=True, slots=True)
class Placement:
    settings: PlacementSettings
    cpus: float
    gpus: float
    memory: int
    target_requests: float

    @property
    def actor_options(self) -> dict[str, Any]:
        """As Ray's actor options."""
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "memory": self.memory}
        return options | ({"resources": self.settings.resources} if self.settings.resources else {})

    @property
    def replicas(self) -> dict[str, Any]:
        if self.settings.min_replicas == self.settings.most:
            return {"num_replicas": self.settings.min_replicas}
        scaling = {
            "min_replicas": self.settings.min_replicas,
            "initial_replicas": self.settings.min_replicas,
            "max_replicas": self.settings.most,
            "target_ongoing_requests": self.target_requests,
            "upscale_delay_s": self.settings.upscale_delay,
            "downscale_delay_s": self.settings.downscale_delay,
            # Not longer than the upscale delay, as far as Ray allows: it gets loads every ten seconds.
            "look_back_period_s": min(30.0, max(10.5, self.settings.upscale_delay)),
        }
        return {"autoscaling_config": scaling}

    def missing_resources(self, nodes: Sequence[Mapping[str, float]]) -> str:
        """The resources that no node has enough of, as text; empty if a replica fits on some node."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory, **self.settings.resources}
        lacking = [{name for name, amount in wanted.items() if amount > node.get(name, 0)} for node in nodes]
        if not all(lacking):
            return ""
        fewest = min(lacking, key=len, default=set(wanted))
        wanted["memory"] = round(self.memory / 2**30, 1)
        return ", ".join(f"{wanted[name]:g} {_UNITS.get(name, name)}" for name in sorted(fewest))


def placement(model: Model, settings: PlacementSettings, *, has_gpus: bool) -> Placement:
    """Raises `StartupError` if its memory is neither set nor known."""
    options = model.options
    gpus = settings.gpus
    if gpus is None:
        gpus = 1.0 if has_gpus and (options.n_gpu_layers != 0 or model.auto_layers) else 0.0
    memory = settings.memory
    if memory is None:
        estimate = model.estimate(gpu=gpus > 0)
        if estimate is None and not model.is_fake:
            raise StartupError(
                f"cannot estimate the memory of {model.name} ({model.problem()}): set cluster.memory of the model"
            )
        memory = _PROCESSES + (estimate.host.total + estimate.prefixes if estimate is not None else 0)
    return Placement(
        settings,
        cpus=settings.cpus if settings.cpus is not None else options.n_threads,
        gpus=gpus,
        memory=memory,
        target_requests=settings.target_requests or options.parallel,
    )

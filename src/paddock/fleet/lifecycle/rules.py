"""Settings that concern all models together."""

from __future__ import annotations

from dataclasses import dataclass, field

from paddock.config import ModelManagerSettings
from paddock.fleet.catalogue.options import total_cache_ram
from paddock.fleet.lifecycle.policy import Bytes

_COPIED = ("check_memory", "min_residence", "wait_timeout", "check_interval", "spare_worker")


@dataclass(frozen=True, slots=True)
class Rules:
    memory_limit: Bytes = field(default_factory=dict)
    """The most memory that they may take, by device."""
    check_memory: bool = True
    """Whether free memory is checked too."""
    cache_ram: int = 0
    """Bytes of host memory for the prefixes of all models together."""
    models_max: int | None = None
    min_residence: float = 5.0
    """Seconds that a busy model stays loaded at least."""
    wait_timeout: float = 600.0
    """Seconds that a request waits for its model to load."""
    check_interval: float = 60.0
    spare_worker: bool = True
    """Whether a process is kept ready for the next load."""

    @classmethod
    def of(cls, settings: ModelManagerSettings) -> Rules:
        limits = {"host": settings.memory_limit, "gpu": settings.gpu_memory_limit}
        return cls(
            memory_limit={device: limit for device, limit in limits.items() if limit is not None},
            cache_ram=total_cache_ram(settings.cache_ram, [model.cache_ram for model in settings.models.values()]),
            models_max=settings.models_max or None,
            **{name: getattr(settings, name) for name in _COPIED},
        )

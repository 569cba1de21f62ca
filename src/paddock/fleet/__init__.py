"""Which worker serves: the catalogue of models, their processes, and the one manager of both."""

from paddock.fleet.catalogue import Catalogue, Model, open_catalogue
from paddock.fleet.description import Description
from paddock.fleet.environment import has_gpu
from paddock.fleet.estimate import Estimate
from paddock.fleet.files import look_at_files
from paddock.fleet.generation import Generation
from paddock.fleet.journey import Journey
from paddock.fleet.lifecycle import Lifecycle
from paddock.fleet.manager import Fleet
from paddock.fleet.memory import Machine, host_memory_available
from paddock.fleet.numbers import llamacpp_levels, llamacpp_totals
from paddock.fleet.onlookers import Scene, Sighting
from paddock.fleet.records import ModelRecord
from paddock.fleet.rules import Rules
from paddock.fleet.seat import ModelStatus
from paddock.pool.replica import ReplicaStatus

__all__ = [
    "Catalogue",
    "Description",
    "Estimate",
    "Fleet",
    "Generation",
    "Journey",
    "Lifecycle",
    "Machine",
    "Model",
    "ModelRecord",
    "ModelStatus",
    "ReplicaStatus",
    "Rules",
    "Scene",
    "Sighting",
    "has_gpu",
    "host_memory_available",
    "llamacpp_levels",
    "llamacpp_totals",
    "look_at_files",
    "open_catalogue",
]

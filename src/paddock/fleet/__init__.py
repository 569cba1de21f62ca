"""Which worker serves: the catalogue of models, their processes, and the one manager of both."""

from paddock.fleet.catalogue import Catalogue, Model, open_catalogue
from paddock.fleet.description import Description
from paddock.fleet.estimate import Estimate
from paddock.fleet.manager import Fleet, ModelStatus
from paddock.fleet.process import Generation, has_cuda

__all__ = [
    "Catalogue",
    "Description",
    "Estimate",
    "Fleet",
    "Generation",
    "Model",
    "ModelStatus",
    "has_cuda",
    "open_catalogue",
]

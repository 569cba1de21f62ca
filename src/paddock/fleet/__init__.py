"""Which worker serves: the catalogue of models, their processes, and the one manager of both."""

from paddock.fleet.catalogue import Catalogue, Model, open_catalogue
from paddock.fleet.description import Description
from paddock.fleet.manager import Fleet, ModelStatus
from paddock.fleet.process import Generation

__all__ = ["Catalogue", "Description", "Fleet", "Generation", "Model", "ModelStatus", "open_catalogue"]

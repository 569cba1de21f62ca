"""Settings: defaults < file < environment (`.env`, then the real one) < flags. An unknown key is an error."""

from paddock.config.cluster import ClusterSettings, PlacementSettings
from paddock.config.fields import LARGEST_SCALE, MOST_DRAFTED, MOST_REPLICAS, checked_name
from paddock.config.loading import load_settings
from paddock.config.models import ModelManagerSettings, ModelSettings, NamedModel, ReplicaSettings
from paddock.config.problems import nearest
from paddock.config.server import KeySettings, ServerSettings
from paddock.config.settings import Settings

__all__ = [
    "LARGEST_SCALE",
    "MOST_DRAFTED",
    "MOST_REPLICAS",
    "ClusterSettings",
    "KeySettings",
    "ModelManagerSettings",
    "ModelSettings",
    "NamedModel",
    "PlacementSettings",
    "ReplicaSettings",
    "ServerSettings",
    "Settings",
    "checked_name",
    "load_settings",
    "nearest",
]

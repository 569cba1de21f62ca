"""Settings: defaults < file < environment (`.env`, then the real one) < flags. An unknown key is an error."""

from paddock.config.batches import BatchSettings
from paddock.config.cluster import ClusterSettings, PlacementSettings
from paddock.config.fields import (
    ANY_LOCAL_ORIGIN,
    DEFAULT_MODEL,
    LARGEST_SCALE,
    MOST_DRAFTED,
    MOST_REPLICAS,
    Flag,
    checked_name,
    on_off_or_auto,
)
from paddock.config.loading import Loaded, load_settings, load_with_sources
from paddock.config.mcp import McpServer
from paddock.config.media_hosts import HostRules
from paddock.config.models import ModelManagerSettings, ModelSettings, NamedModel, ReplicaSettings
from paddock.config.problems import nearest
from paddock.config.responses import ResponseSettings
from paddock.config.server import KeySettings, PreviousKey, ServerSettings
from paddock.config.settings import Settings
from paddock.config.sources import Source, variable_of

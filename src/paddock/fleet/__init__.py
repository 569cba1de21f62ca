"""The models: their catalogue, their lifecycle, their worker processes and their memory."""

from paddock.fleet.catalogue.builder import open_catalogue
from paddock.fleet.catalogue.cache_folder import create_cache_folder
from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.description import Description
from paddock.fleet.catalogue.digests import FileDigests
from paddock.fleet.catalogue.files import scan_files
from paddock.fleet.catalogue.identity import identity_of
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.broadcast import Broadcast
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.lifecycle.live_feed import FleetSnapshot, ModelSnapshot
from paddock.fleet.lifecycle.model_state import ModelStatus
from paddock.fleet.lifecycle.preconditions import LoadForecast
from paddock.fleet.lifecycle.records import ModelRecord
from paddock.fleet.lifecycle.replica_snapshot import ReplicaSnapshot
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.manager import Fleet
from paddock.fleet.memory.estimate import Estimate, Footprint
from paddock.fleet.memory.machine import Machine, host_memory_available
from paddock.fleet.option_changes import LoadOptions
from paddock.fleet.process.environment import has_gpu
from paddock.fleet.process.llama_metrics import llamacpp_levels, llamacpp_totals
from paddock.fleet.requests.generation import Generation
from paddock.fleet.requests.request_record import RequestRecord
from paddock.replicas.prefix_spans import PrefixSpan
from paddock.replicas.replica import ReplicaStatus

"""The HTTP server: requests in, answers and event streams out. It runs no native code; workers do."""

from paddock.gateway.app import create_app
from paddock.gateway.auth.keys import hashed_keys
from paddock.gateway.dialects.ollama.created import CreatedModels
from paddock.gateway.dialects.ollama.importing import default_store, import_store
from paddock.gateway.http.connection_slots import ConnectionLimits
from paddock.gateway.http.request_limits import RequestLimits
from paddock.gateway.ops.metrics.page import MetricsPage
from paddock.gateway.server import serve

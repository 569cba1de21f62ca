"""HTTP in, SSE out. Knows models by name only; everything native is a process away."""

from paddock.gateway.app import create_app
from paddock.gateway.auth.gate import Gate
from paddock.gateway.auth.keys import hashed_keys, read_keys
from paddock.gateway.auth.usage import UsageBook
from paddock.gateway.http.connection_slots import ConnectionLimits
from paddock.gateway.http.request_limits import RequestLimits
from paddock.gateway.ops.metrics.page import MetricsPage
from paddock.gateway.ops.reload import Reloader
from paddock.gateway.server import serve

__all__ = [
    "ConnectionLimits",
    "Gate",
    "MetricsPage",
    "Reloader",
    "RequestLimits",
    "UsageBook",
    "create_app",
    "hashed_keys",
    "read_keys",
    "serve",
]

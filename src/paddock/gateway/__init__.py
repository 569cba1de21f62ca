"""HTTP in, SSE out. Knows models by name only; everything native is a process away."""

from paddock.gateway.app import create_app
from paddock.gateway.auth import Gate
from paddock.gateway.connection_limits import ConnectionLimits
from paddock.gateway.keys import hashed_keys, read_keys
from paddock.gateway.metrics import MetricsPage
from paddock.gateway.reloading import Reloader
from paddock.gateway.request_limits import RequestLimits
from paddock.gateway.server import serve
from paddock.gateway.usage import UsageBook

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

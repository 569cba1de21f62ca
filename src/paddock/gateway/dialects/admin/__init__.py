"""The operator's API: load, unload, reload and drain models, and show their state."""

from __future__ import annotations

from typing import Final

from paddock.gateway.dialects.admin.cache import cache_routes
from paddock.gateway.dialects.admin.managing import managing_routes
from paddock.gateway.dialects.admin.routes import admin_routes
from paddock.gateway.dialects.dialect import Dialect

ADMIN: Final = Dialect(
    tag="admin",
    routers=lambda services: [admin_routes(services), cache_routes(services), managing_routes(services)],
    permissions={
        "key": ["GET /models/sse"],
        "admin": [
            *("GET /admin/status", "POST /admin/load", "POST /admin/unload", "POST /admin/reload"),
            *("GET /admin/cache", "POST /admin/cache/clear"),
            *("GET /admin/hub", "GET /admin/hub/{owner}/{repository}", "GET /admin/downloads", "POST /admin/estimate"),
            "DELETE /models",
            *("POST /admin/drain", "POST /admin/undrain", "POST /models/load", "POST /models/unload"),
        ],
    },
)

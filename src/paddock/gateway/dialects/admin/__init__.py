"""The operator's requests: models loaded, unloaded and read again by hand, and how they all are."""

from paddock.gateway.dialects.admin.routes import admin_routes

__all__ = ["admin_routes"]

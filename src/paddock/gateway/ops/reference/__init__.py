"""`/docs`: the description of the API as a page, and `/openapi.json`, from which the page is made in the browser."""

from paddock.gateway.ops.reference.routes import reference_routes

__all__ = ["reference_routes"]

"""`/v1/files` and `/v1/batches` of a server, as the commands use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paddock.cli.chat.server import Server

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class BatchApi:
    def __init__(self, server: Server) -> None:
        self._server = server

    def upload(self, path: Path, name: str) -> str:
        """Returns the id of the file."""
        with path.open("rb") as file:
            part = {"file": (name, file, "application/jsonl")}
            uploaded = self._server.request("POST", "/v1/files", data={"purpose": "batch"}, files=part)
        identifier: str = uploaded["id"]
        return identifier

    def create(self, file_id: str, endpoint: str, **fields: Any) -> dict[str, Any]:
        """`fields` that are None are left out."""
        more = {name: value for name, value in fields.items() if value is not None}
        body = {"input_file_id": file_id, "endpoint": endpoint, **more}
        return self._server.request("POST", "/v1/batches", body)

    def batch(self, batch_id: str) -> dict[str, Any]:
        return self._server.request("GET", f"/v1/batches/{batch_id}")

    def batches(self, limit: int) -> list[dict[str, Any]]:
        """The newest first."""
        found: list[dict[str, Any]] = []
        while len(found) < limit:
            after = {"after": found[-1]["id"]} if found else {}
            params = {"limit": min(limit - len(found), 100), **after}
            page = self._server.request("GET", "/v1/batches", params=params)
            found += page["data"]
            if not page["has_more"]:
                break
        return found

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._server.request("POST", f"/v1/batches/{batch_id}/cancel")

    def fetch(self, file_id: str | None, path: Path) -> Path | None:
        """Download a result file. Nothing is at the path before it is complete. None: there are no such results."""
        if file_id is None:
            return None
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            self._server.download(f"/v1/files/{file_id}/content", file)
        part.replace(path)
        return path

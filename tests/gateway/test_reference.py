"""`/docs`: the policy and the content of the API reference page."""

from __future__ import annotations

import re

from tests.server import Server
from tests.tiers import full


@full
def test_the_reference_loads_nothing_from_other_servers(fake_server: Server) -> None:
    for path in ("/docs", "/redoc"):
        page = fake_server.client.get(path)
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "connect-src 'self'" in policy
        addresses = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        assert len(addresses) >= 3
        for address in set(addresses) - {"data:,"}:
            found = fake_server.client.get(f"/{address}")
            assert found.status_code == 200
            assert "//" not in address
        assert not re.search(r"<script>|<style>|style=|\son[a-z]+=", page.text), "the policy forbids inline code"
    script = fake_server.client.get("/docs/reference.js").text
    assert "innerHTML" not in script and "://" not in script


def test_openapi_json_has_an_etag(fake_server: Server) -> None:
    first = fake_server.client.get("/openapi.json")
    assert first.json()["paths"]["/v1/chat/completions"]
    again = fake_server.client.get("/openapi.json", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_other_files_are_not_found(fake_server: Server) -> None:
    for name in ("oauth2-redirect", "routes.py", "..%2froutes.py", "reference.html%00"):
        assert fake_server.client.get(f"/docs/{name}").status_code == 404

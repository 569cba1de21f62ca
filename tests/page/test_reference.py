"""`/docs` in a browser: it lists every operation, and sends requests to this server only."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.server import Server
from tests.tiers import full

pytestmark = full


def test_the_reference_lists_operations_and_sends_requests(page: Page, fake_server: Server) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    page.goto(f"{fake_server.url}/docs")
    document = fake_server.client.get("/openapi.json").json()
    expect(page.locator("details")).to_have_count(sum(len(operations) for operations in document["paths"].values()))
    page.get_by_label("Filter").fill("/tokenize")
    operation = page.locator("details", has_text="/tokenize").first
    operation.locator("summary").click()
    operation.get_by_label("body").fill('{"content": "a"}')
    operation.get_by_role("button", name="Send").click()
    expect(operation.locator("pre").last).to_contain_text('"tokens"')
    assert all(url.startswith(fake_server.url) for url in asked)
    assert refused == []

"""Blocks of code: wrapped, copied, and shown as a document that can do nothing but show itself."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.page.chatting import answered, ask
from tests.server import Server
from tests.tiers import full

pytestmark = full

# The document reports what it was able to do.
DOCUMENT = """\
say: ```html
<style>h1 { color: rgb(1, 2, 3) }</style><h1>Hello</h1><p id="found"></p>
<script>
const found = [];
try { localStorage.length; found.push("storage"); } catch {}
try { parent.document.title; found.push("page"); } catch {}
try { top.location = "about:blank"; found.push("top"); } catch {}
try { new RTCPeerConnection(); found.push("rtc"); } catch {}
const image = new Image();
image.src = "ADDRESS/icon.svg";
Promise.allSettled([fetch("ADDRESS/health"), image.decode()]).then((all) => {
  for (const { status } of all) if (status === "fulfilled") found.push("network");
  document.getElementById("found").textContent = "found: " + found.join();
});
</script>
```"""


def test_code_is_wrapped_copied_and_previewed(page: Page, fake_server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(fake_server.url)
    ask(page, DOCUMENT.replace("ADDRESS", fake_server.url))
    block = answered(page).locator(".code")
    code = block.locator("pre")
    expect(code).to_have_css("white-space", "pre")
    block.get_by_role("button", name="Wrap").click()
    expect(code).to_have_css("white-space", "pre-wrap")
    block.get_by_role("button", name="Copy").click()
    expect(block.get_by_role("button", name="Copied")).to_be_visible()
    assert str(page.evaluate("navigator.clipboard.readText()")).startswith("<style>h1")
    block.get_by_role("button", name="Preview").click()
    shown = block.frame_locator("iframe")
    expect(shown.get_by_role("heading", name="Hello")).to_have_css("color", "rgb(1, 2, 3)")
    expect(shown.locator("#found")).to_have_text("found: ")
    expect(code).to_be_hidden()
    assert page.url.startswith(fake_server.url)
    block.get_by_role("button", name="Code", exact=True).click()
    expect(code).to_be_visible()
    ask(page, "say: ```python\nx = 1\n```")
    later = answered(page, 2).locator(".code")
    expect(later.locator("pre")).to_have_css("white-space", "pre-wrap")  # as chosen before
    expect(later.get_by_role("button", name="Preview")).to_have_count(0)

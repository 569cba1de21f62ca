"""Diagrams: drawn on request, in a frame that reaches neither the page nor a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Frame, Locator, Page, expect

from tests.page.axe import serious_findings
from tests.page.chatting import answered, answers, ask
from tests.server import Server
from tests.tiers import full

pytestmark = full

FLOWCHART = """\
flowchart LR
  A[Prompt] --> B{Cached?}
  B -- yes --> C[Restore]
  B -- no --> D[Prefill]
  click A "https://elsewhere.example/" "a link"
"""
SEQUENCE = """\
sequenceDiagram
  participant G as Gateway
  participant W as Worker
  G->>W: request
  W-->>G: tokens
"""
# What the frame is able to do.
REACHES = """async (address) => {
    const found = [self.origin];
    try { localStorage.length; found.push("storage"); } catch {}
    try { parent.document.title; found.push("page"); } catch {}
    await fetch(`${address}/health`).then(() => found.push("network"), () => {});
    const image = new Image();
    image.src = `${address}/icon.svg`;
    await image.decode().then(() => found.push("image"), () => {});
    document.body.insertAdjacentHTML("beforeend", "<img src='x:' onerror='window.harmed = 1'>");
    return found;
}"""
WATCH = (
    "window.violations = []; addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective))"
)
OTHERS = {
    "classDiagram": "class Model\n  Model <|-- Replica",
    "stateDiagram-v2": "[*] --> Loaded\n  Loaded --> Idle",
    "erDiagram": "KEY ||--o{ REQUEST : sends",
    "gantt": "dateFormat YYYY-MM-DD\n  section Load\n  Weights :a, 2026-01-01, 3d",
    "pie": '"Prefill" : 40\n  "Decode" : 60',
    "gitGraph": "commit\n  branch next\n  commit",
}


def fenced(source: str) -> str:
    return f"say: ```mermaid\n{source.strip()}\n```"


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def phone(browser: Browser, scheme: str) -> Iterator[BrowserContext]:
    context = browser.new_context(
        viewport={"width": 390, "height": 844},
        color_scheme=scheme,  # type: ignore[arg-type]
        service_workers="block",
    )
    context.set_default_timeout(120_000)
    yield context
    context.close()


def preview(block: Locator) -> Frame:
    """Draw a diagram. Its frame, once it is drawn."""
    block.get_by_role("button", name="Preview").click()
    frame = block.locator("iframe").element_handle().content_frame()
    assert frame is not None
    expect(block.frame_locator("iframe").locator("#diagram > svg")).to_be_visible()
    return frame


def test_diagrams_are_drawn_in_a_frame_of_their_own(browser: Browser, fake_server: Server, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce", service_workers="block")  # type: ignore[arg-type]
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.add_init_script(WATCH)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    try:
        page.goto(fake_server.url)
        ask(page, fenced(FLOWCHART))
        flowchart = answered(page).locator(".code")
        expect(flowchart.get_by_role("button", name="Preview")).to_be_visible()
        assert not [url for url in requested if "diagram" in url or "mermaid" in url], "loaded when it is needed"
        frame = preview(flowchart)
        shown = flowchart.frame_locator("iframe")
        for label in ("Prompt", "Cached?", "Restore", "Prefill"):
            expect(shown.locator("svg").get_by_text(label, exact=True)).to_be_visible()
        expect(flowchart.locator("pre")).to_be_hidden()
        expect(flowchart.locator("iframe")).to_have_attribute("title", "Diagram, flowchart")
        expect(shown.locator("svg a[href]")).to_have_count(0)
        dark = scheme == "dark"
        expect(shown.locator("html")).to_have_css(
            "background-color", "rgb(30, 33, 36)" if dark else "rgb(255, 255, 255)"
        )
        # As high as the diagram, and reached by keyboard.
        height = "document.documentElement.scrollHeight <= innerHeight"
        frame.wait_for_function(height, polling=100)
        flowchart.get_by_role("button", name="Copy").focus()
        page.keyboard.press("Tab")
        expect(shown.locator("#diagram")).to_be_focused()
        ask(page, fenced(SEQUENCE))
        sequence = answered(page, 2).locator(".code")
        preview(sequence)
        svg = sequence.frame_locator("iframe").locator("svg")
        for label in ("Gateway", "Worker"):
            expect(svg.get_by_text(label, exact=True).first).to_be_visible()
        assert serious_findings(page) == []
        assert page.evaluate("violations") == []
        assert frame.evaluate("violations") == []
        assert all(url.startswith((fake_server.url, "blob:")) for url in requested)
        assert frame.evaluate("self.origin") == "null"
        assert frame.evaluate(REACHES, fake_server.url) == ["null"]
        # Not at each picture, as by default: a frame that is scrolled away gets none.
        frame.wait_for_function("violations.includes('script-src-attr')", polling=100)
        assert frame.evaluate("window.harmed") is None
        flowchart.get_by_role("button", name="Code", exact=True).click()
        expect(flowchart.locator("pre")).to_be_visible()
        expect(flowchart.locator("iframe")).to_have_count(0)
    finally:
        context.close()


def test_a_wide_diagram_scrolls_on_a_phone(phone: BrowserContext, fake_server: Server) -> None:
    page = phone.new_page()
    page.goto(fake_server.url)
    ask(
        page,
        fenced("flowchart LR\n" + "\n".join(f"  A{n}[Number {n}] --> A{n + 1}[Number {n + 1}]" for n in range(20))),
    )
    frame = preview(answered(page).locator(".code"))
    assert frame.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_findings(page) == []


@pytest.mark.parametrize("kind", OTHERS)
def test_the_small_library_draws_the_common_kinds(page: Page, fake_server: Server, kind: str) -> None:
    page.goto(fake_server.url)
    ask(page, fenced(f"{kind}\n  {OTHERS[kind]}\n"))
    preview(answered(page).locator(".code"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("flowchart TD\n  A --> --> B\n", "The diagram cannot be drawn: Parse error on line 2."),
        ("nonsense\n", "The diagram cannot be drawn: No diagram type detected"),
        ("flowchart TD\n" + "  A --> B\n" * 301, "The diagram cannot be drawn:"),
    ],
)
def test_an_error_is_one_line_beside_the_source(page: Page, fake_server: Server, source: str, reason: str) -> None:
    page.goto(fake_server.url)
    ask(page, fenced(source))
    block = answered(page).locator(".code")
    block.get_by_role("button", name="Preview").click()
    expect(block.get_by_role("alert")).to_contain_text(reason)
    expect(block.locator("pre")).to_be_visible()
    expect(block.locator("iframe")).to_have_count(0)
    expect(block.get_by_role("button", name="Preview")).to_be_visible()
    assert serious_findings(page) == []


def test_only_complete_blocks_have_a_preview(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    ask(page, fenced(FLOWCHART) + "\n\n" + "more words " * 200)
    # Seen by the page itself, because the answer grows meanwhile.
    seen = """() => {
        const button = document.querySelector(".code-preview:not([hidden])");
        return button && button.closest(".code").querySelector("code").textContent;
    }"""
    source = page.wait_for_function(seen).json_value()
    assert str(source).strip() == FLOWCHART.strip(), "not before its last line"
    expect(answers(page)).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").first.click()


def test_a_source_that_is_too_long_is_not_drawn(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, fenced(FLOWCHART))
    block = answered(page).locator(".code")
    block.locator("code").evaluate("(code) => { code.textContent = 'flowchart TD\\\\n' + 'A --> B\\\\n'.repeat(2500) }")
    block.get_by_role("button", name="Preview").click()
    expect(block.get_by_role("alert")).to_have_text("The diagram cannot be drawn: it has more than 20,000 characters.")
    expect(block.locator("iframe")).to_have_count(0)

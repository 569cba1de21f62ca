"""The playground in a real browser; what is copied there is run, and gives the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.page.axe import serious_findings
from tests.server import Server
from tests.tiers import full

pytestmark = full

PROMPT = "It's a \"grey\" horse,\n$HOME `id` \\ 'and' 🐎"


@pytest.fixture
def page(context: BrowserContext, page: Page) -> Page:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return page


@pytest.fixture(scope="module")
def vector_server() -> Iterator[Server]:
    with Server("-m", "fake:", "-a", "letters", "--embedding") as server:
        yield server


def copied(page: Page, name: str) -> str:
    page.get_by_role("button", name=f"Copy as {name}").click()
    expect(page.get_by_text(f"Copied as {name}")).to_be_visible()
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def run(*command: str, **env: str) -> str:
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=60, check=True, env={**os.environ, **env}
    ).stdout


def complete(page: Page) -> str:
    """Press the button, and return what has come when all has."""
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_role("region", name="Completion")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("status").filter(has_text="tokens")).to_be_visible()
    return page.locator(".answer-text").inner_text()


def test_a_completion_and_its_commands(page: Page, fake_server: Server) -> None:
    page.goto(f"{fake_server.url}/#/playground")
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Top k").fill("20")
    page.get_by_label("Show token probabilities").uncheck()
    answer = complete(page)
    assert answer

    lines = run("sh", "-c", copied(page, "curl")).splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == answer
    assert run(sys.executable, "-c", copied(page, "Python")).rstrip("\n") == answer


def test_how_likely_each_token_was(page: Page, demo_server: Server) -> None:
    page.goto(f"{demo_server.url}/#/playground/completion")
    page.get_by_label("Prompt").fill("The capital of France is")
    page.get_by_label("Max tokens").fill("8")
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_role("region", name="Completion")).to_have_attribute("aria-busy", "false")
    tokens = page.get_by_role("toolbar").get_by_role("button")
    expect(tokens).to_have_count(8)
    alternatives = page.get_by_role("table")
    for place in (1, 4):
        tokens.nth(place).hover()
        # At temperature 0 the most likely token is chosen and shown first.
        expect(alternatives.get_by_role("row")).to_have_count(5)
        expect(alternatives.get_by_role("row").first).to_contain_text("(chosen)")
        expect(alternatives.get_by_role("row").first).to_contain_text(tokens.nth(place).inner_text())
    tokens.nth(4).focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(5)).to_be_focused()


def test_an_answer_can_be_stopped(page: Page) -> None:
    with Server("-m", "fake:delay=0.1") as server:
        page.goto(f"{server.url}/#/playground")
        page.get_by_role("button", name="Complete").click()
        expect(page.get_by_role("toolbar").get_by_role("button").first).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Complete")).to_be_visible()


def test_what_the_server_refuses_is_said_in_its_words(page: Page, fake_server: Server) -> None:
    page.goto(f"{fake_server.url}/#/playground")
    page.get_by_label("Max tokens").fill("8")
    page.get_by_label("Top P").fill("3")
    # The browser itself would not send it; the server has the last word.
    page.locator("form.controls").evaluate("form => { form.noValidate = true }")
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_role("alert")).to_contain_text("top_p")


def test_texts_and_how_alike_they_are(page: Page, vector_server: Server) -> None:
    page.goto(f"{vector_server.url}/#/playground/embeddings")
    for number, text in enumerate(["listen", 'it\'s "silent"', "xyz"], 1):
        page.get_by_label(f"Text {number}", exact=True).fill(text)
    page.get_by_role("button", name="Compare").click()
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(4)
    for place in range(3):
        expect(rows.nth(place + 1).get_by_role("cell").nth(place)).to_have_text("1.00")
    first, second = (json.loads(run("sh", "-c", copied(page, "curl")))["data"][place]["embedding"] for place in (0, 1))
    alike = sum(left * right for left, right in zip(first, second, strict=True))
    expect(rows.nth(1).get_by_role("cell").nth(1)).to_have_text(f"{alike:.2f}")
    assert len(run(sys.executable, "-c", copied(page, "Python")).splitlines()) == 3

    page.get_by_role("button", name="Add text").click()
    page.get_by_role("button", name="Remove text 1").click()
    expect(page.get_by_label("Text 1", exact=True)).to_have_value('it\'s "silent"')


def test_a_model_that_makes_no_vectors_says_so(page: Page, fake_server: Server) -> None:
    page.goto(f"{fake_server.url}/#/playground/embeddings")
    expect(page.get_by_role("status").filter(has_text="computes no embeddings")).to_be_visible()
    expect(page.get_by_role("button", name="Compare")).to_be_disabled()


def test_a_text_as_tokens(page: Page, fake_server: Server) -> None:
    page.goto(f"{fake_server.url}/#/playground/tokens")
    page.get_by_label("Text", exact=True).fill("<|im_start|>é it's\n")
    page.get_by_role("button", name="Tokenize").click()
    expect(page.get_by_role("status").filter(has_text="9 tokens of 19 characters")).to_be_visible()
    tokens = page.get_by_role("region", name="Tokens").locator(".token")
    expect(tokens).to_have_text(["<|im_start|>258", "c3195", "a9169", "·32", "i105", "t116", "'39", "s115", "⏎10"])


def test_the_tokens_command(page: Page, fake_server: Server) -> None:
    page.goto(f"{fake_server.url}/#/playground/tokens")
    page.get_by_label("Text", exact=True).fill(PROMPT)
    answer = json.loads(run("sh", "-c", copied(page, "curl")))
    told = fake_server.client.post("/tokenize", json={"content": PROMPT, "with_pieces": True}).json()
    assert answer == told
    assert run(sys.executable, "-c", copied(page, "Python")).strip() == str(told)


def test_documents_in_the_order_of_their_relevance(page: Page) -> None:
    with Server("-m", "fake:", "-a", "judge", "--reranking") as server:
        page.goto(f"{server.url}/#/playground/rerank")
        page.get_by_label("Query").fill("hay")
        page.get_by_label("Documents").fill("a train at noon\nhay and grass")
        page.get_by_role("button", name="Rank", exact=True).click()
        rows = page.get_by_role("region", name="Ranking").locator("tbody tr")
        expect(rows).to_have_count(2)
        assert serious_findings(page) == []
        found = json.loads(run("sh", "-c", copied(page, "curl")))["results"]
        scores = sorted((result["relevance_score"] for result in found), reverse=True)
        assert [float(text) for text in rows.locator("td:first-child").all_inner_texts()] == [
            pytest.approx(score, abs=0.001) for score in scores
        ]


def test_the_key_is_never_copied(context: BrowserContext, page: Page) -> None:
    context.add_init_script("sessionStorage.setItem('paddock.key', 'a-secret')")
    with Server("-m", "fake:", "--api-key", "a-secret") as server:
        page.goto(f"{server.url}/#/playground/tokens")
        page.get_by_role("button", name="Tokenize").click()
        expect(page.get_by_role("region", name="Tokens").locator(".token").first).to_be_visible()
        for name, command in (("curl", ("sh", "-c")), ("Python", (sys.executable, "-c"))):
            text = copied(page, name)
            assert "a-secret" not in text
            assert "'tokens'" in run(*command, text, PADDOCK_API_KEY="a-secret").replace('"', "'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_anybody_can_use_it(page: Page, demo_server: Server, vector_server: Server, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 844})
    for server, tab, button, result in (
        (demo_server, "completion", "Complete", ".token"),
        (demo_server, "tokens", "Tokenize", ".token"),
        (vector_server, "embeddings", "Compare", ".matrix"),
    ):
        page.goto(f"{server.url}/#/playground/{tab}")
        page.get_by_role("button", name=button).click()
        expect(page.locator(result).first).to_be_visible()
        expect(page.locator(".result")).to_have_attribute("aria-busy", "false")
        assert serious_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing lies beside the screen"

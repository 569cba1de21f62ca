"""What goes wrong is told where it happens, and can be tried again: keys, crashes, no connection."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.sync_api import Page, expect

from tests.page.chatting import answered, answers, ask, composer, entries, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full


def test_a_key_is_asked_for_once_and_a_wrong_one_is_told(page: Page) -> None:
    with Server("-m", "fake:", "--api-key", "right") as server:
        page.goto(server.url)
        dialog = page.get_by_role("dialog", name="API key required")
        dialog.get_by_label("API key", exact=True).fill("wrong")
        dialog.get_by_role("button", name="Save").click()
        again = page.get_by_role("dialog", name="Invalid API key")
        again.get_by_label("API key", exact=True).fill("right")
        again.get_by_role("button", name="Save").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        ask(page, "say: welcome")
        expect(text_of(answered(page))).to_have_text("welcome")
        page.reload()
        expect(text_of(answered(page))).to_have_text("welcome")
        ask(page, "say: again")
        expect(text_of(answered(page, 2))).to_have_text("again")
        assert page.evaluate("localStorage.getItem('paddock.key')") is None


def test_what_was_refused_is_sent_again_with_the_key(page: Page) -> None:
    with Server("-m", "fake:", "--api-key", "right") as server:
        page.goto(server.url)
        page.get_by_label("API key", exact=True).fill("right")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("button", name="Select a model")).to_contain_text("fake")
        page.evaluate("sessionStorage.setItem('paddock.key', 'stale')")
        page.reload()
        dialog = page.get_by_role("dialog", name="Invalid API key")
        dialog.get_by_role("button", name="Not now").click()
        expect(page.get_by_text("You can still read your chat history.")).to_be_visible()
        expect(page.get_by_text("Loading models")).to_have_count(0)
        composer(page).fill("say: through")
        composer(page).press("Enter")
        expect(page.get_by_role("alert")).to_have_text("This server requires an API key.")
        page.get_by_role("main").get_by_role("button", name="Enter API key").click()
        page.get_by_label("API key", exact=True).fill("right")
        page.get_by_label("Remember in this browser").check()
        page.get_by_role("button", name="Save").click()
        ask(page, "say: through")
        expect(text_of(answered(page))).to_have_text("through")
        assert page.evaluate("localStorage.getItem('paddock.key')") == "right"


def test_without_models_it_says_what_to_do(page: Page, fake_server: Server) -> None:
    page.route("**/models", lambda route: route.fulfill(json={"object": "list", "data": []}))
    page.goto(fake_server.url)
    expect(page.get_by_role("status").filter(has_text="paddock pull")).to_be_visible()
    expect(page.get_by_text("Loading models")).to_have_count(0)
    composer(page).fill("say: hello")
    composer(page).press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This server has no chat model that you can use.")
    expect(composer(page)).to_have_value("say: hello")
    page.unroute("**/models")
    page.get_by_role("button", name="Reload").click()
    expect(composer(page)).to_have_value("say: hello")
    composer(page).press("Enter")
    expect(text_of(answered(page))).to_have_text("hello")


@pytest.mark.parametrize("killed", [True, False])
def test_a_worker_that_dies_over_an_answer(page: Page, killed: bool) -> None:
    with Server("-m", "fake:delay=0.03") as server:
        page.goto(server.url)
        ask(page, "say: " + "word " * 100 if killed else "crash: now")
        answer = answers(page).first
        expect(text_of(answer)).to_contain_text("word word" if killed else "")
        if killed:
            (pid,) = server.workers()
            os.kill(pid, signal.SIGKILL)
        problem = answer.get_by_role("alert")
        expect(problem).to_contain_text("Answer interrupted")
        expect(problem).to_contain_text("SIGKILL" if killed else "SIGABRT")
        expect(problem).to_contain_text("worker_crashed · request ")
        if killed:
            expect(text_of(answer)).to_contain_text("word word")
            problem.get_by_role("button", name="Retry").click()
            expect(answers(page).first.get_by_role("alert")).to_have_count(0)
            expect(text_of(answers(page).first)).to_contain_text("word word")
            page.keyboard.press("Escape")
            expect(answered(page).get_by_role("group", name="Versions")).to_contain_text("2/2")


def test_a_server_that_is_gone(page: Page) -> None:
    with Server("-m", "fake:") as server:
        page.goto(server.url)
        ask(page, "say: here")
        answered(page)
        server.stop()
        ask(page, "say: gone")
        problem = answered(page, 2).get_by_role("alert")
        expect(problem).to_contain_text("The server cannot be reached.")
        expect(problem.get_by_role("button", name="Retry")).to_be_visible()
        expect(page.get_by_role("status").filter(has_text="You can still read your chat history")).to_be_visible()
        expect(entries(page)).to_have_count(1)


def test_being_offline_is_told(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    expect(composer(page)).to_have_attribute("placeholder", "Message fake")
    page.context.set_offline(True)
    expect(page.get_by_text("This device is offline.")).to_be_visible()
    ask(page, "say: hello")
    expect(answered(page).get_by_role("alert")).to_contain_text("This device is offline.")
    page.context.set_offline(False)
    page.get_by_role("button", name="Retry").click()
    expect(text_of(answered(page))).to_have_text("hello")

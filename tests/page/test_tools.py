"""Tools of MCP servers in the chat: chosen, confirmed, run by the server, their results edited and sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.mcp.server import Mcp, text
from tests.page.axe import serious_findings
from tests.page.chatting import answered, answers, ask, body_of, composer, open_settings, text_of
from tests.server import Server, wait_for
from tests.tiers import full

pytestmark = full

# The fake model answers to the beginning of the last message, which this template makes the result itself.
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split(":\\n", 1)[1] if m.content.startswith("The result of") else m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{{ "" }}"""


@pytest.fixture
def mcp() -> Iterator[Mcp]:
    with Mcp(events=True) as mcp:
        yield mcp


@pytest.fixture
def server(mcp: Mcp) -> Iterator[Server]:
    """A fake model, and a server with tools beside one that cannot be reached."""
    servers = ("--mcp", f"notes={mcp.url}", "--mcp", "away=http://127.0.0.1:9/mcp")
    with Server("-m", "fake:", "--chat-template", TEMPLATE, *servers) as server:
        yield server


def calling(tool: str, **arguments: Any) -> str:
    """What makes the fake model call a tool."""
    return "say: " + json.dumps({"name": f"notes__{tool}", "arguments": arguments})


def offer(page: Page, server: Server, *tools: str) -> None:
    page.goto(server.url)
    open_settings(page)
    page.get_by_text("Tools of the server").click()
    for tool in tools:
        page.get_by_role("group", name="notes").get_by_label(tool).check()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Tools", exact=True)).to_be_visible()


def called(mcp: Mcp) -> list[dict[str, Any]]:
    """The calls that have reached the tools."""
    return [message["params"] for _, _, message in mcp.requests if message.get("method") == "tools/call"]


def call_of(answer: Locator, tool: str) -> Locator:
    return answer.get_by_role("group", name=f"Call of notes__{tool}")


def results(page: Page) -> Locator:
    return page.get_by_role("article", name="Tool result")


def test_a_call_is_confirmed_and_its_result_edited_and_sent(page: Page, server: Server, mcp: Mcp) -> None:
    page.goto(server.url)
    assert mcp.requests == [], "tools are listed when they are looked for"
    open_settings(page)
    page.get_by_text("Tools of the server").click()
    expect(page.get_by_role("group", name="away")).to_contain_text("cannot be reached")
    expect(page.get_by_role("group", name="notes").get_by_role("checkbox")).to_have_count(2)
    assert serious_findings(page) == []
    page.get_by_role("group", name="notes").get_by_label("echo").check()
    expect(page.get_by_text("Tools of the server (1 selected)")).to_be_visible()
    page.get_by_role("button", name="Done").click()

    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, calling("echo", text="say: hello"))
    assert [tool["function"]["name"] for tool in body_of(sent.value)["tools"]] == ["notes__echo"]
    answer = answered(page)
    call = call_of(answer, "echo")
    expect(call).to_contain_text("from notes")
    expect(call.get_by_label("Arguments of notes__echo")).to_contain_text("say: hello")
    expect(answer.get_by_role("button", name="Send result")).to_be_disabled()
    assert called(mcp) == []
    assert serious_findings(page) == []

    call.get_by_role("button", name="Run").click()
    expect(call.get_by_label("Result of notes__echo")).to_have_value("say: hello")
    expect(call.get_by_label("Result of notes__echo")).to_be_focused()
    assert called(mcp) == [{"name": "echo", "arguments": {"text": "say: hello"}}]
    call.get_by_label("Result of notes__echo").fill("say: hello, changed")
    with page.expect_request("**/v1/chat/completions") as sent:
        answer.get_by_role("button", name="Send result").click()
    assert body_of(sent.value)["messages"][-1]["content"] == "say: hello, changed"
    expect(text_of(answered(page, 2))).to_have_text("hello, changed")

    results(page).get_by_role("button", name="Edit result").click()
    results(page).get_by_role("textbox").fill("say: again")
    page.keyboard.press("Enter")
    expect(text_of(answers(page).last)).to_have_text("again")
    expect(results(page).get_by_text("2/2")).to_be_visible()
    assert len(called(mcp)) == 1


def test_calls_are_edited_declined_and_fail(page: Page, server: Server, mcp: Mcp) -> None:
    offer(page, server, "echo", "fail")
    ask(page, calling("echo", text="one"))
    call = call_of(answered(page), "echo")
    call.get_by_role("button", name="Edit").click()
    arguments = call.get_by_label("New arguments of notes__echo")
    arguments.fill("[")
    expect(call.get_by_role("alert")).to_contain_text("JSON object")
    expect(call.get_by_role("button", name="Run")).to_be_disabled()
    arguments.fill('{"text": "two"}')
    call.get_by_role("button", name="Run").click()
    expect(call.get_by_label("Result of notes__echo")).to_have_value("two")
    expect(call).to_contain_text("changed by you")
    assert called(mcp) == [{"name": "echo", "arguments": {"text": "two"}}]

    page.reload()
    call = call_of(answered(page), "echo")
    expect(call.get_by_label("Result of notes__echo")).to_have_value("two")
    with page.expect_request("**/v1/chat/completions") as sent:
        call.get_by_label("Result of notes__echo").fill(calling("fail", text="x"))
        page.get_by_role("button", name="Send result").click()
    earlier = body_of(sent.value)["messages"][1]["tool_calls"][0]["function"]
    assert json.loads(earlier["arguments"]) == {"text": "two"}

    call = call_of(answered(page, 2), "fail")
    call.get_by_role("button", name="Run").click()
    failed = call.get_by_label("Error of notes__fail, which is sent to the model")
    expect(failed).to_have_value("Error: the disk is full")
    failed.fill(calling("echo", text="three"))
    page.get_by_role("button", name="Send result").click()

    call = call_of(answered(page, 3), "echo")
    call.get_by_role("button", name="Decline").click()
    expect(call.get_by_label("Result of notes__echo")).to_have_value("The user declined this call.")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Send result").click()
    assert body_of(sent.value)["messages"][-1]["content"] == "The user declined this call."
    answered(page, 4)
    assert [each["name"] for each in called(mcp)] == ["echo", "fail"]


def test_an_allowed_tool_runs_by_itself_for_a_bounded_number_of_rounds(page: Page, server: Server, mcp: Mcp) -> None:
    """The result makes the model call the tool again, without an end."""
    mcp.add("again", calling("again", text="more"))
    offer(page, server, "again", "echo")
    ask(page, calling("again", text="once"))
    call_of(answered(page), "again").get_by_role("button", name="Always allow in this conversation").click()
    last = answers(page).last  # only the end of a long conversation is rendered
    expect(last).to_contain_text("Tools were called in 20 answers in a row")
    assert len(called(mcp)) == 19
    call_of(last, "again").get_by_role("button", name="Run").click()
    expect(call_of(last, "again").get_by_label("Result of notes__again")).to_be_visible()

    ask(page, calling("echo", text="say: no"))
    expect(call_of(last, "echo").get_by_role("button", name="Run")).to_be_visible()
    assert len(called(mcp)) == 20, "only the allowed tool runs by itself"
    open_settings(page)
    page.get_by_text("Tools of the server").click()
    page.get_by_role("button", name="Ask again").click()
    page.get_by_role("button", name="Done").click()
    ask(page, calling("again", text="once"))
    expect(call_of(last, "again").get_by_role("button", name="Run")).to_be_visible()


def test_a_running_call_can_be_stopped(page: Page, server: Server, mcp: Mcp) -> None:
    mcp.add("wait", mcp.wait)
    offer(page, server, "wait")
    ask(page, calling("wait"))
    call = call_of(answered(page), "wait")
    call.get_by_role("button", name="Always allow in this conversation").click()
    expect(call.get_by_text("Running notes__wait")).to_be_visible()
    wait_for(mcp.held.is_set, 30, "the call")
    composer(page).focus()
    page.keyboard.press("Escape")
    expect(call.get_by_role("button", name="Run")).to_be_visible()
    wait_for(lambda: "notifications/cancelled" in mcp.methods(), 30, "the cancellation")
    expect(answers(page)).to_have_count(1)


def test_a_call_that_a_reload_has_cut_asks_again(page: Page, server: Server, mcp: Mcp) -> None:
    mcp.add("wait", mcp.wait)
    offer(page, server, "wait")
    ask(page, calling("wait"))
    call_of(answered(page), "wait").get_by_role("button", name="Run").click()
    wait_for(mcp.held.is_set, 30, "the call")
    page.reload()
    call = call_of(answered(page), "wait")
    expect(call).to_contain_text("its result is not known here")
    mcp.add("wait", lambda _: text("done"))
    call.get_by_role("button", name="Run").click()
    expect(call.get_by_label("Result of notes__wait")).to_have_value("done")
    expect(call).not_to_contain_text("its result is not known here")


def test_the_keyboard_is_enough(page: Page, server: Server) -> None:
    offer(page, server, "echo")
    ask(page, calling("echo", text="say: typed"))
    call = call_of(answered(page), "echo")
    call.get_by_role("button", name="Run").focus()
    page.keyboard.press("Enter")
    expect(call.get_by_label("Result of notes__echo")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Send result")).to_be_focused()
    page.keyboard.press("Enter")
    expect(text_of(answered(page, 2))).to_have_text("typed")


def test_an_export_has_calls_and_results_and_no_allowance(page: Page, server: Server, tmp_path: Path) -> None:
    offer(page, server, "echo")
    ask(page, calling("echo", text="say: told"))
    call_of(answered(page), "echo").get_by_role("button", name="Always allow in this conversation").click()
    expect(text_of(answered(page, 2))).to_have_text("told")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    download.value.save_as(tmp_path / "chats.json")
    (conversation,) = json.loads((tmp_path / "chats.json").read_text())["conversations"]
    assert "allowed" not in conversation
    assert json.loads(conversation["settings"]["server_tools"])[0]["tool"] == "echo"
    assert [message["role"] for message in conversation["messages"]].count("tool") == 1

"""Talking to a model: the first words, stopping, asking again, branches, and what an answer may look like."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from tests.page.chatting import answered, answers, ask, body_of, composer, entries, open_settings, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full

CODE = "```python\nprint('hello')  # a comment\n```"
THINKING_TEMPLATE = """\
{%- for message in messages -%}
{{- "<|im_start|>" + message.role + "\\n" -}}
{%- if message.reasoning_content %}{{ "<think>\\n" + message.reasoning_content + "\\n</think>\\n\\n" }}{% endif -%}
{{- message.content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif -%}"""


def test_a_first_chat_with_a_real_model(page: Page, demo_server: Server) -> None:
    page.goto(demo_server.url)
    expect(composer(page)).to_be_focused()
    page.get_by_role("button", name="Chat settings").click()
    expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.8")
    page.get_by_label("Max tokens").fill("24")
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()
    ask(page, "What is the capital of France?")
    answer = answered(page)
    expect(text_of(answer)).to_have_text(re.compile(r"\w{3}"))
    for words in ("tokens/s", "prompt ", "first token"):
        expect(answer.locator(".statistics")).to_contain_text(words)
    expect(page.get_by_role("heading", name="What is the capital of France?")).to_be_visible()
    ask(page, "And of Italy?")
    expect(answered(page, 2).locator(".statistics")).to_contain_text("cached")
    expect(composer(page)).to_be_focused()


def test_shift_and_enter_start_a_new_line(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    composer(page).press_sequentially("say: one")
    composer(page).press("Shift+Enter")
    composer(page).press_sequentially("two")
    expect(answers(page)).to_have_count(0)
    composer(page).press("Enter")
    expect(text_of(answered(page))).to_have_text("one two")


def test_what_is_sent_before_the_models_are_known_goes_when_they_are(page: Page, fake_server: Server) -> None:
    held: list[Route] = []
    page.route("**/models", lambda route: held.append(route))
    page.goto(fake_server.url)
    composer(page).fill("say: early")
    composer(page).press("Enter")
    expect(page.get_by_text("Will be sent when the models are loaded.")).to_be_visible()
    expect(composer(page)).to_have_value("say: early")
    for route in held:
        route.continue_()
    expect(text_of(answered(page))).to_have_text("early")
    expect(page.get_by_text("Will be sent when")).to_have_count(0)
    expect(composer(page)).to_have_value("")


def test_an_answer_is_stopped_and_given_again(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    ask(page, "say: " + "word " * 200)
    expect(text_of(answers(page).first)).to_contain_text("word word")
    page.keyboard.press("Escape")
    answer = answered(page)
    expect(answer.locator(".statistics")).to_contain_text("stopped")
    written = text_of(answer).inner_text()
    assert 2 <= written.count("word") < 200
    answer.get_by_role("button", name="Regenerate").click()
    expect(answer.get_by_role("group", name="Versions")).to_have_count(0)  # until the new one has ended
    expect(text_of(answers(page).first)).to_contain_text("word")
    page.get_by_role("button", name="Stop").click()
    expect(answer.get_by_role("group", name="Versions")).to_contain_text("2/2")
    answer.get_by_role("button", name="Previous version").click()
    expect(text_of(answer)).to_have_text(written)
    expect(answer.locator(".statistics")).to_contain_text("fake")
    # It goes on where it was stopped.
    with page.expect_request("**/v1/chat/completions") as sent:
        answer.get_by_role("button", name="Continue").click()
    last = body_of(sent.value)["messages"][-1]
    assert last["role"] == "assistant"
    assert last["content"].split() == written.split()
    expect(text_of(answer)).to_have_text(re.compile(f"^{re.escape(written.rstrip())}.*[^\\s]"))
    page.keyboard.press("Escape")
    answered(page)
    assert len(text_of(answer).inner_text()) > len(written)
    expect(page.get_by_role("meter")).to_have_accessible_name(re.compile(r"^Context: [\d,]+ of [\d,]+ tokens used$"))
    expect(page).to_have_title("say: word word word word word word word word word word word… · Paddock")


def test_a_question_is_edited_and_both_branches_stay(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: one")
    answered(page)
    ask(page, "say: more of one")
    answered(page, 2)
    question = page.get_by_role("article", name="You").first
    question.hover()
    question.get_by_role("button", name="Edit", exact=True).click()
    editor = question.get_by_role("textbox", name="Message")
    editor.fill("say: two")
    editor.press("Enter")
    expect(text_of(answered(page, 1))).to_have_text("two")
    expect(question.get_by_role("group", name="Versions")).to_contain_text("2/2")
    page.reload()
    expect(text_of(answered(page, 1))).to_have_text("two")
    question.get_by_role("button", name="Previous version").click()
    expect(text_of(answered(page, 2))).to_have_text("more of one")
    composer(page).press("ArrowUp")
    expect(page.get_by_role("article", name="You").last.get_by_role("textbox")).to_have_value("say: more of one")


def test_an_answer_is_edited_and_gone_on_from(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: wrong")
    answer = answered(page)
    answer.get_by_role("button", name="Edit answer").click()
    page.get_by_role("article", name="Answer").get_by_role("textbox").fill("right")
    page.get_by_role("button", name="Save as new version").click()
    expect(text_of(answered(page))).to_have_text("right")
    expect(answered(page).locator(".statistics")).to_have_text("edited")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "say: so")
    said = [message["content"] for message in body_of(sent.value)["messages"]]
    assert said == ["say: wrong", "right", "say: so"]


def test_answers_go_on_while_another_conversation_is_open(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    ask(page, "say: a slow answer that is written while one looks elsewhere")
    expect(text_of(answers(page).first)).to_contain_text("a slow")
    page.get_by_role("button", name="New chat").click()
    ask(page, "say: here")
    expect(text_of(answered(page))).to_have_text("here")
    # In one step: the entry moves up when its answer grows, also between a focus and a key.
    entries(page).filter(has_text="a slow answer").get_by_role("link").dispatch_event("click")
    expect(text_of(answered(page))).to_have_text("a slow answer that is written while one looks elsewhere")


def test_what_is_typed_at_once_belongs_to_the_new_chat(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: first")
    expect(text_of(answered(page))).to_have_text("first")
    page.evaluate(
        """() => {
            document.querySelector(".new-chat").click();
            const box = document.getElementById("composer");
            box.value = "say: second";
            box.dispatchEvent(new InputEvent("input", { bubbles: true }));
        }"""
    )
    expect(answers(page)).to_have_count(0)
    expect(composer(page)).to_have_value("say: second")
    composer(page).press("Enter")
    expect(text_of(answered(page))).to_have_text("second")
    entries(page).filter(has_text="first").get_by_role("link").dispatch_event("click")
    expect(text_of(answered(page))).to_have_text("first")
    expect(composer(page)).to_have_value("")


def test_markdown_code_tables_and_formulas(page: Page, fake_server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(fake_server.url)
    ask(
        page,
        f"say: # Title\n\n- one\n- two\n\n{CODE}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n$$\\frac12$$\n\nand \\(x^2\\).",
    )
    answer = text_of(answered(page))
    expect(answer.get_by_role("heading", name="Title")).to_be_visible()
    expect(answer.get_by_role("listitem")).to_have_count(2)
    expect(answer.get_by_role("cell", name="2")).to_be_visible()
    expect(answer.locator("mfrac")).to_be_attached()
    expect(answer.locator("msup")).to_be_attached()
    expect(answer.locator(".hljs-comment")).to_have_text("# a comment")
    answer.get_by_role("button", name="Copy").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "print('hello')  # a comment"


def test_only_the_end_of_a_growing_answer_is_made_anew(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    ask(page, "say: first\n\nsecond\n\n" + "third " * 30)
    answer = text_of(answers(page).first)
    expect(answer).to_contain_text("second")
    expect(answer).to_contain_text("third")
    answer.locator(".block").first.evaluate("block => block.marked = true")
    expect(answer).to_contain_text("third third third third")
    assert answer.locator(".block").first.evaluate("block => block.marked")
    page.get_by_role("button", name="Stop").click()
    answered(page)
    assert answer.locator(".block").first.evaluate("block => block.marked")


def test_thoughts_are_folded(page: Page, tmp_path: Path) -> None:
    template = tmp_path / "thinking.jinja"
    template.write_text(THINKING_TEMPLATE)
    with Server("-m", "fake:", "--chat-template-file", str(template)) as server:
        page.goto(server.url)
        ask(page, "say: <think>\nLet me see.\n</think>\n\nIt is so.")
        answer = answered(page)
        expect(text_of(answer)).to_have_text("It is so.")
        expect(answer.get_by_text("Let me see.")).to_be_hidden()
        answer.get_by_text(re.compile("^Thought for")).click()
        expect(answer.get_by_text("Let me see.")).to_be_visible()


def test_calls_are_shown_and_given_results(page: Page, fake_server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
    page.goto(fake_server.url)
    open_settings(page)
    field = page.get_by_label("Tools (JSON array)")
    field.fill("[")
    expect(page.get_by_role("alert")).to_contain_text("Invalid JSON")
    field.fill(json.dumps(tools))
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name="Tools", exact=True)).to_be_visible()
    ask(page, 'say: {"name": "clock", "arguments": {"zone": "UTC"}}')
    answer = answered(page)
    expect(answer.get_by_label("Arguments of clock")).to_contain_text('"zone": "UTC"')
    answer.get_by_role("button", name="Copy").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied == {"name": "clock", "arguments": {"zone": "UTC"}}
    with page.expect_request("**/v1/chat/completions") as sent:
        answer.get_by_label("Result of clock").fill("say: noon")
        answer.get_by_role("button", name="Send result").click()
    result = body_of(sent.value)["messages"][-1]
    assert (result["role"], result["content"]) == ("tool", "say: noon")
    answered(page, 2)


def test_answers_follow_a_schema_and_bad_ones_are_not_sent(page: Page, fake_server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    page.goto(fake_server.url)
    open_settings(page)
    page.get_by_label("JSON schema of the answer").fill("{")
    page.keyboard.press("Escape")
    ask(page, "A number, please.")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Invalid JSON")
    expect(answers(page)).to_have_count(0)
    page.get_by_label("JSON schema of the answer").fill(json.dumps(schema))
    page.get_by_role("button", name="Done").click()
    composer(page).press("Enter")
    assert json.loads(text_of(answered(page)).inner_text()).keys() == {"n"}
    open_settings(page)
    page.get_by_label("JSON schema of the answer").fill(
        '{"type": "object", "properties": {"n": {"not": {"minimum": 1}}}}'
    )
    page.get_by_role("button", name="Done").click()
    ask(page, "And another.")
    problem = answered(page, 2).get_by_role("alert")
    expect(problem).to_contain_text("response_format")
    expect(problem).to_contain_text("request ")


def test_a_text_file_is_attached_and_another_refused(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    chooser = page.get_by_label("Files to attach", exact=True)
    chooser.set_input_files({"name": "photo.png", "mimeType": "image/png", "buffer": b"\x89PNG\x00"})
    expect(page.get_by_role("alert")).to_have_text("photo.png is not an image that this browser can read.")
    chooser.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"The horse is grey."})
    expect(page.get_by_role("list", name="Attached files")).to_contain_text("notes.txt")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What colour is it?")
    content = body_of(sent.value)["messages"][0]["content"]
    assert content == "notes.txt:\n```\nThe horse is grey.\n```\n\nWhat colour is it?"
    answered(page)
    page.get_by_text("notes.txt").click()
    expect(page.get_by_text("The horse is grey.")).to_be_visible()


def test_files_are_pasted_and_dropped(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    for event, name in (
        ("ClipboardEvent('paste', { clipboardData", "pasted"),
        ("DragEvent('drop', { dataTransfer", "dropped"),
    ):
        composer(page).evaluate(
            f"""box => {{
                const data = new DataTransfer();
                data.items.add(new File(["text"], "{name}.txt"));
                box.dispatchEvent(new {event}: data, bubbles: true, cancelable: true }}));
            }}"""
        )
        expect(page.get_by_role("list", name="Attached files")).to_contain_text(f"{name}.txt")
    page.get_by_role("button", name="Remove pasted.txt").click()
    expect(page.get_by_role("list", name="Attached files")).to_have_text("dropped.txt")


def test_a_mistake_in_the_settings_is_never_left_out(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    open_settings(page)
    page.get_by_label("Temperature").fill("warm")
    expect(page.get_by_role("alert")).to_have_text("Not a number")
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Write a haiku").click()
    expect(answered(page).get_by_role("alert")).to_contain_text("field temperature")
    open_settings(page)
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Retry").click()
    expect(text_of(answered(page))).to_have_text(re.compile(r"\w"))


def test_what_is_answered_is_told_in_sentences(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: First this. Then **that**")
    answered(page)
    told = page.get_by_test_id("announcements").locator("p")
    expect(told).to_have_text(["First this.", "Then that", "End of answer."])


def test_keys_are_shown(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    keys = page.get_by_role("dialog", name="Keyboard shortcuts")
    composer(page).press("?")
    expect(keys).to_have_count(0)
    expect(composer(page)).to_have_value("?")
    composer(page).press("Control+Shift+?")
    expect(keys).to_be_visible()
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    page.get_by_role("main").get_by_role("button", name="Keyboard shortcuts").click()
    expect(keys).to_be_visible()
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    composer(page).blur()
    page.keyboard.press("?")
    expect(keys).to_be_visible()


def test_files_are_dropped_anywhere_and_each_refused_one_is_named(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    expect(composer(page)).to_be_focused()
    kept = page.evaluate(
        """() => {
            const data = new DataTransfer();
            for (const name of ["a.png", "b.png"]) data.items.add(new File(["\\0"], name));
            data.items.add(new File(["text"], "c.txt"));
            const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
            document.querySelector("h1").dispatchEvent(drop);
            return drop.defaultPrevented;
        }"""
    )
    assert kept, "the browser does not open the file"
    expect(page.get_by_role("list", name="Attached files")).to_have_text("c.txt")
    expect(page.get_by_role("alert")).to_contain_text("a.png")
    expect(page.get_by_role("alert")).to_contain_text("b.png")


def test_enter_while_answering_sends_when_the_answer_is_complete(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    ask(page, "say: " + "word " * 20)
    for text in ("say: " + "next " * 200, "say: not sent"):
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        composer(page).fill(text)
        composer(page).press("Enter")
        if text != "say: not sent":
            expect(text_of(answers(page).nth(1))).to_contain_text("next")
    expect(page.get_by_text("Will be sent when this answer is finished.")).to_be_visible()
    # After an answer that is stopped the user decides.
    page.get_by_role("button", name="Stop").click()
    answered(page, 2)
    expect(page.get_by_text("Will be sent when this answer is finished.")).to_have_count(0)
    expect(composer(page)).to_have_value("say: not sent")


def test_a_fixed_setting_is_no_longer_complained_about(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    open_settings(page)
    page.get_by_label("Temperature").fill("warm")
    page.keyboard.press("Escape")
    ask(page, "say: hello")
    expect(page.get_by_role("dialog")).to_be_visible()  # the settings, with the mistake
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_contain_text("invalid")
    open_settings(page)
    page.get_by_label("Temperature").fill("0")
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_have_count(0)

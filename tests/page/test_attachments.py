"""Images, audio and PDF files in the chat, with models that read them and one that does not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests import tiny_models, tiny_projectors
from tests.page.chatting import answered, ask, body_of, composer
from tests.server import Server
from tests.tiers import full
from tests.tiny_projectors import picture, sound

pytestmark = full


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name, projector in (("eye", tiny_projectors.llava), ("ear", tiny_projectors.ultravox)):
        (folder / name).mkdir()
        tiny_models.llama(folder / name / f"{name}.gguf")
        projector(folder / name / "mmproj.gguf")
    tiny_models.llama(folder / "blind.gguf", layers=1)
    with Server("--models-dir", str(folder), "-c", "1024") as server:
        yield server


def select(page: Page, model: str) -> None:
    page.get_by_role("button", name="Select a model").click()
    page.get_by_role("dialog", name="Models").get_by_role("button", name=model, exact=False).first.click()
    expect(composer(page)).to_have_attribute("placeholder", f"Message {model}")


def short_answers(page: Page) -> None:
    short = json.dumps({"defaults": {model: {"max_tokens": "4"} for model in ("eye", "ear")}})
    page.add_init_script(f"localStorage.setItem('paddock.library', {json.dumps(short)})")


def pdf(text: str) -> bytes:
    """A PDF file of one page with one line."""
    drawing = f"BT /F1 24 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawing), drawing),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    )
    file, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(file))
    return file + b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + table + end


def test_an_image_is_sent_shown_and_kept(page: Page, server: Server) -> None:
    short_answers(page)
    page.goto(server.url)
    select(page, "blind")
    chooser = page.get_by_label("Files to attach", exact=True)
    chooser.set_input_files({"name": "wide.png", "mimeType": "image/png", "buffer": picture(1, 4096, 64)})
    expect(page.get_by_role("alert")).to_contain_text("blind does not accept images")
    composer(page).fill("what is it")
    composer(page).press("Enter")
    expect(page.get_by_role("article")).to_have_count(0)
    page.reload()  # the draft keeps its image
    thumbnail = page.get_by_role("list", name="Attached files").get_by_role("img", name="wide.png")
    expect(thumbnail).to_be_visible()
    select(page, "eye")
    expect(page.get_by_role("alert")).to_have_count(0)
    with page.expect_request("**/v1/chat/completions") as sent:
        composer(page).press("Enter")
    image, text = body_of(sent.value)["messages"][0]["content"]
    assert text == {"type": "text", "text": "what is it"}
    kind, data = image["image_url"]["url"].split(",")
    assert kind == "data:image/jpeg;base64"
    assert b"\x00\x20\x08\x00" in base64.b64decode(data), "the frame header has 32 x 2048 pixels"
    expect(answered(page)).to_contain_text("token limit reached")
    page.reload()
    shown = page.get_by_role("article", name="You").get_by_role("img", name="wide.png")
    expect(shown).to_be_visible()
    page.wait_for_function("image => image.naturalWidth === 2048", arg=shown.element_handle())
    shown.click()
    expect(page.get_by_role("dialog", name="wide.png").get_by_role("img")).to_be_visible()


def test_audio_and_the_text_of_a_pdf_are_sent(page: Page, server: Server) -> None:
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    short_answers(page)
    page.goto(server.url)
    select(page, "ear")
    assert not [url for url in loaded if "pdf" in url], "pdf.js is loaded with the first PDF"
    chooser = page.get_by_label("Files to attach", exact=True)
    files: list[FilePayload] = [
        {"name": "a.wav", "mimeType": "audio/wav", "buffer": sound(1, 0.2)},
        {"name": "b.pdf", "mimeType": "application/pdf", "buffer": pdf("The gate is green.")},
        {"name": "c.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 broken"},
    ]
    chooser.set_input_files(files)
    expect(page.get_by_role("alert")).to_have_text("c.pdf is not a PDF that this page can read.")
    expect(page.get_by_role("list", name="Attached files")).to_contain_text("b.pdf")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "what is said")
    audio, text = body_of(sent.value)["messages"][0]["content"]
    assert audio == {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(sound(1, 0.2)).decode(), "format": "wav"},
    }
    assert text["text"] == "b.pdf:\n```\nThe gate is green.\n```\n\nwhat is said"
    expect(answered(page)).to_contain_text("token limit reached")
    player = page.get_by_role("article", name="You").locator("audio")
    page.wait_for_function("player => player.duration > 0.1", arg=player.element_handle())

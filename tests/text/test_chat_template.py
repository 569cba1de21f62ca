from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from paddock.errors import TemplateRefused
from paddock.text import ChatTemplate

HELLO = [{"role": "user", "content": "hi"}]


def test_the_default_template_is_chatml() -> None:
    assert ChatTemplate(None).render(HELLO) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_special_tokens_and_generation_prompt() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}",
        bos="<s>",
        eos="</s>",
    )
    assert template.render(HELLO) == "<s>hi</s>>"
    assert template.render(HELLO, add_generation_prompt=False) == "<s>hi</s>"


def test_extensions_that_templates_use() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endfor %}{{ {'k': 'é<'} | tojson }}{{ strftime_now('%Y') }}"
    )
    template = ChatTemplate(source, now=lambda: datetime(2024, 1, 2))
    assert template.render(HELLO * 2) == 'hi{"k": "é<"}2024'


def test_dates() -> None:
    source = "{{ strftime_now('%Y-%m-%d') }} {{ date_string }} {{ datetime }}"
    template = ChatTemplate(source, now=lambda: datetime(2024, 1, 2, 3, 4))
    assert template.render(HELLO) == "2024-01-02 02 Jan 2024 Jan 02 2024"
    assert template.render(HELLO, date="2025-12-31") == "2025-12-31 31 Dec 2025 Dec 31 2025"
    assert template.render(HELLO, options={"date_string": "today"}).split()[1] == "today"


def test_text_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "a\nb" in ChatTemplate(None).render([{"role": "user", "content": parts}])
    assert "None" not in ChatTemplate(None).render([{"role": "assistant", "content": None}])


def test_a_template_can_refuse_messages() -> None:
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HELLO)
    with pytest.raises(TemplateRefused):
        ChatTemplate("{{ messages[3].content.nothing }}").render(HELLO)


def test_an_invalid_template_is_reported_when_it_is_used() -> None:
    with pytest.raises(TemplateRefused, match="invalid: line 1"):
        ChatTemplate("{% if %}").render(HELLO)


def test_templates_cannot_leave_the_sandbox() -> None:
    for escape in ("{{ ''.__class__.__mro__ }}", "{{ messages.clear() }}", "{{ cycler.__init__.__globals__ }}"):
        try:
            text = ChatTemplate(escape).render(HELLO)
        except TemplateRefused:
            continue
        assert text == ""


def test_a_template_cannot_change_the_callers_lists() -> None:
    source = "{% set seen = [] %}{% for m in messages %}{{ seen.append(m.role) or '' }}{% endfor %}{{ seen.pop() }}"
    messages = list(HELLO)
    assert ChatTemplate(source + "{{ messages.pop() and '' }}").render(messages) == "user"
    assert messages == HELLO


def test_templates_of_many_model_families_render() -> None:
    models = os.environ.get("PADDOCK_TEST_MODELS")
    folder = Path(models).parent / "templates" if models else None
    if folder is None or not folder.is_dir():
        pytest.skip("no folder of chat templates beside PADDOCK_TEST_MODELS")
    refused = []
    for file in sorted(folder.glob("*.jinja")):
        try:
            text = ChatTemplate(file.read_text("utf-8"), bos="<s>", eos="</s>").render(HELLO)
            assert "hi" in text, file.name
        except TemplateRefused as error:
            refused.append(f"{file.name}: {error.message}")
    assert not refused

"""What Ollama's API parses: durations, names, options, messages and the manifests of a store."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paddock.errors import PaddockError
from paddock.gateway.dialects.ollama import names
from paddock.gateway.dialects.ollama.created import Created, CreatedModels
from paddock.gateway.dialects.ollama.durations import FOREVER, keep_alive
from paddock.gateway.dialects.ollama.options import Options
from paddock.gateway.dialects.ollama.requests import ChatRequest, GenerateRequest
from paddock.gateway.dialects.ollama.store import BrokenStore, manifests, name_of, read_model
from paddock.gateway.dialects.ollama.templates import family_of, is_go_template
from tests.tiers import examples

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.integers(0, 9999), st.sampled_from(sorted(_UNITS))), min_size=1, max_size=4))
def test_durations(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    expected = sum(number * _UNITS[unit] for number, unit in parts)
    assert keep_alive(text) == pytest.approx(expected)
    assert keep_alive(f"-{text}") == (FOREVER if expected else 0.0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        ("0", 0.0),
        (-1, FOREVER),
        ("-1", FOREVER),
        ("-1m", FOREVER),
        (300, 300.0),
        ("1.5h", 5400.0),
        ("300", 300.0),
    ],
)
def test_keep_alive(value: Any, seconds: float) -> None:
    assert keep_alive(value) == seconds


@examples(500)
@given(st.text(max_size=20) | st.text("0123456789.-+hmsun", max_size=10) | _values)
def test_any_keep_alive_is_seconds_or_an_error(value: Any) -> None:
    try:
        found = keep_alive(value)
    except ValueError:
        return
    assert found == FOREVER or 0 <= found < math.inf


_word = st.text("aB3_-.", min_size=1, max_size=5).filter(lambda word: word[0] not in ".-" and ".." not in word)


@given(_word, st.none() | _word, st.none() | _word)
def test_a_valid_name_means_itself(model: str, owner: str | None, tag: str | None) -> None:
    name = (f"{owner}/" if owner else "") + model + (f":{tag}" if tag else "")
    assert names.is_valid(name)
    short = names.canonical(name)
    assert names.match(names.tagged(short), [short]) == short
    assert names.canonical(names.tagged(short)) == names.canonical(short)


@examples(500)
@given(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=4))
def test_any_name_is_one_of_the_known_or_none(name: str, known: list[str]) -> None:
    assert names.match(name, known) in (None, *known)
    if names.is_valid(name):
        assert re.search(r"\s|\.\.|\\|^/|//", name) is None


def test_tags_are_endings() -> None:
    known = ["SmolLM2-135M.Q4_1", "SmolLM2-135M.Q8_0", "qwen3:0.6b"]
    assert names.match("smollm2-135m:q8_0", known) == known[1]
    assert names.match("qwen3:0.6B", known) == "qwen3:0.6b"
    assert names.match("smollm2-135m", known) is None


@examples(300)
@given(st.dictionaries(st.sampled_from(sorted(Options.model_fields)) | st.text(max_size=5), _values, max_size=5))
def test_options_are_valid_or_refused_with_their_names(given: dict[str, Any]) -> None:
    try:
        found = Options.model_validate_json(json.dumps(given))
    except ValidationError as error:
        assert all(problem["loc"] for problem in error.errors())
    except PaddockError:
        pass
    else:
        assert Options.model_validate_json(json.dumps(found.given)).given == found.given
        assert found.over(Options(temperature=0.5)).temperature == (
            0.5 if found.temperature is None else found.temperature
        )
        assert set(found.no_effect) <= found.given.keys()


@examples(300)
@given(
    st.sampled_from([ChatRequest, GenerateRequest]),
    st.dictionaries(
        st.sampled_from(
            ["messages", "prompt", "options", "format", "think", "keep_alive", "context", "template", "tools"]
        )
        | st.text(max_size=4),
        _values,
        max_size=5,
    ),
)
def test_bodies_are_valid_or_refused(kind: Any, body: dict[str, Any]) -> None:
    try:
        found = kind.model_validate_json(json.dumps(body))
        prompt = found.prompt if isinstance(found, GenerateRequest) else found.is_empty or found.prompt()
    except (ValidationError, PaddockError):
        return
    assert prompt is not None


@pytest.mark.parametrize(
    ("template", "family"),
    [
        (
            "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}",
            "chatml",
        ),
        (
            "{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>{{ .Content }}<|eot_id|>{{ end }}",
            "llama3",
        ),
        ("[INST] {{ .Prompt }} [/INST]", "mistral-v1"),
        ("{{ .Prompt }}", None),
    ],
)
def test_go_templates(template: str, family: str | None) -> None:
    assert is_go_template(template) and family_of(template) == family


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}{{ m.content }}{% endfor %}", "{{ messages[0]['content'] }}"]
)
def test_jinja_templates_are_no_go_templates(template: str) -> None:
    assert not is_go_template(template)


# ── stores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_of_manifests() -> None:
    assert name_of(("registry.ollama.ai", "library", "llama3.2", "latest")) == "llama3.2"
    assert name_of(("registry.ollama.ai", "library", "llama3.2", "1b")) == "llama3.2:1b"
    assert name_of(("registry.ollama.ai", "me", "mine", "latest")) == "me/mine"
    assert name_of(("hf.co", "owner", "name", "Q4_0")) == "hf.co/owner/name:Q4_0"


_KIND = "application/vnd.ollama.image."
_blobs = st.sampled_from([b"", b"{}", b"[]", b"[1]", b'{"a": 1}', b"\xff", b"text", b'[{"role": "user"}]'])
_layers = st.lists(
    st.tuples(
        st.sampled_from(["model", "template", "system", "params", "messages", "adapter", "license", "projector", "x"]),
        st.integers(0, 4),
    ),
    max_size=5,
)


@examples(300)
@given(st.lists(_blobs, min_size=1, max_size=4), _layers, st.none() | st.binary(max_size=60) | _values)
def test_any_manifest_is_read_or_refused(contents: list[bytes], layers: list[tuple[str, int]], other: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        (store / "blobs").mkdir()
        digests = [hashlib.sha256(data).hexdigest() for data in contents]
        for digest, data in zip(digests, contents, strict=True):
            (store / "blobs" / f"sha256-{digest}").write_bytes(data)
        listed = [
            {"mediaType": _KIND + kind, "digest": f"sha256:{digests[at]}" if at < len(digests) else "sha256:../../x"}
            for kind, at in layers
        ]
        sent = (
            other if isinstance(other, bytes) else json.dumps({"layers": listed if other is None else other}).encode()
        )
        try:
            model = read_model(store, "x", sent)
        except BrokenStore:
            return
        assert model.file.parent == store / "blobs"


def test_manifests_of_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "m"
    folder.mkdir(parents=True)
    (folder / "latest").write_text("{}")
    (folder / ".DS_Store").write_text("")
    (tmp_path / "manifests" / "stray").write_text("")
    assert [name for name, _ in manifests(tmp_path)] == ["m"]
    with pytest.raises(BrokenStore, match="no GGUF file"):
        read_model(tmp_path, "m", b"{}")


# ── names that were made ─────────────────────────────────────────────────────────────────────────────────────────────


def test_made_names_are_read_again_when_another_process_changes_them(tmp_path: Path) -> None:
    one, other = CreatedModels(tmp_path / "data"), CreatedModels(tmp_path / "data")
    assert one.all() == {}
    other.change(lambda models: models.update(a=Created(base="b", parameters={"stop": ["x"]})))
    assert one.all()["a"].base == "b"
    one.change(lambda models: models.update(c=Created(base="d")))
    assert other.all().keys() == {"a", "c"}


@given(st.binary(max_size=40))
def test_a_broken_file_has_no_names_and_is_not_overwritten(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ollama.json"
        file.write_bytes(content)
        created = CreatedModels(Path(folder))
        assert created.all() == {} or b"models" in content or content.strip().startswith(b"{")
        try:
            created.change(lambda models: None)
        except PaddockError:
            assert file.read_bytes() == content

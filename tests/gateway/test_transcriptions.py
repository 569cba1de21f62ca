"""`/v1/audio/transcriptions`: forms in, text out, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from paddock.errors import InvalidRequest
from paddock.gateway.http.forms import parse_form
from tests import tiny_models, tiny_projectors
from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server, events
from tests.tiers import full
from tests.tiny_projectors import picture, sound

PATH = "/v1/audio/transcriptions"
INSTRUCTION = {"type": "text", "text": "Transcribe audio to text"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name, projector in (("ear", tiny_projectors.ultravox), ("eye", tiny_projectors.llava)):
        (folder / name).mkdir()
        tiny_models.llama(folder / name / f"{name}.gguf")
        projector(folder / name / "mmproj.gguf")
    tiny_models.llama(folder / "deaf.gguf", layers=1)
    # Texts are compared, and how a prompt is divided into steps depends on the time.
    with Server("--models-dir", str(folder), "-c", "1024", "--deterministic") as server:
        yield server


def transcribe(server: Server, file: bytes = sound(1), path: str = PATH, **fields: Any) -> httpx.Response:
    data = {"model": "ear", "max_tokens": "12", **fields}
    return server.client.post(path, data=data, files={"file": ("a.wav", file)})


def chat(server: Server, *parts: dict[str, Any]) -> dict[str, Any]:
    audio = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound(1)).decode()}}
    messages = [{"role": "user", "content": [*parts, audio]}]
    sent = {"model": "ear", "messages": messages, "max_tokens": 12, "temperature": 0}
    response = server.client.post("/v1/chat/completions", json=sent)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_transcription_is_a_conversation_with_the_audio(server: Server) -> None:
    expected = chat(server, INSTRUCTION)
    text = expected["choices"][0]["message"]["content"]
    assert text
    found = transcribe(server).json()
    assert found["text"] == text, "greedy by default"
    usage = found["usage"]
    assert usage["input_tokens"] == expected["usage"]["prompt_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    prompt = "Write down every word. " * 6  # prefixes are exact at multiples of 128 tokens
    cached = [transcribe(server, prompt=prompt).json()["usage"]["input_tokens_details"]["cached_tokens"] for _ in "ab"]
    assert cached == [0, 128], cached
    assert transcribe(server, path="/audio/transcriptions").json()["text"] == text
    plain = transcribe(server, response_format="text")
    assert (plain.text, plain.headers["content-type"]) == (text, "text/plain; charset=utf-8")
    sent = transcribe(server, stream="true")
    streamed = [json.loads(data) for _, data in events(sent) if data != "[DONE]"]
    assert "".join(event["delta"] for event in streamed[:-1]) == text
    assert (streamed[-1]["type"], streamed[-1]["text"]) == ("transcript.text.done", text)
    own = chat(server, {"type": "text", "text": "Write it (language: de)"})["choices"][0]["message"]["content"]
    assert transcribe(server, prompt="Write it", language="de").json()["text"] == own


@full
def test_answers_match_the_document(server: Server) -> None:
    document = server.client.get("/openapi.json").json()
    content = document["paths"][PATH]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/plain", "text/event-stream"}
    schemas = {"components": document["components"]}
    jsonschema.validate(transcribe(server).json(), content["application/json"]["schema"] | schemas)
    event = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"][0]["contentSchema"]
    for _, data in events(transcribe(server, stream="true")):
        if data != "[DONE]":
            jsonschema.validate(json.loads(data), event | schemas)


def test_openais_package(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    more: dict[str, Any] = {"extra_body": {"max_tokens": 12}}
    file = ("a.wav", sound(1))
    whole = client.audio.transcriptions.create(model="ear", file=file, language="en", temperature=0, **more)
    assert whole.text
    text = client.audio.transcriptions.create(
        model="ear", file=file, language="en", temperature=0, response_format="text", **more
    )
    assert text == whole.text
    stream = client.audio.transcriptions.create(
        model="ear", file=file, language="en", temperature=0, stream=True, **more
    )
    parts = list(stream)
    assert "".join(part.delta for part in parts if part.type == "transcript.text.delta") == whole.text
    assert parts[-1].type == "transcript.text.done"
    assert parts[-1].text == whole.text


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"model": "deaf"}, "file", "does not support audio input: it has no projector"),
        ({"model": "eye"}, "file", "does not support audio input: its projector reads images only"),
        ({"response_format": "srt"}, "response_format", "use json or text"),
        ({"response_format": "verbose_json"}, "response_format", "which the model does not give"),
        ({"response_format": "xml"}, "response_format", "must be json or text"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"max_tokens": "-2"}, "max_tokens", "-1"),
        ({"stream": "perhaps"}, "stream", "boolean"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities", "not supported"),
        ({"include[]": ["logprobs"]}, "include", "not supported"),
        ({"receipt": "true"}, "receipt", "not a parameter"),
        ({"prompt": ["a", "b"]}, "prompt", "string"),
        ({"prompt": "a" * 70_000}, "prompt", "65536 bytes"),
    ],
)
def test_what_is_refused_names_its_field(server: Server, fields: dict[str, Any], param: str, says: str) -> None:
    response = transcribe(server, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert says in error["message"]


@pytest.mark.parametrize(
    ("file", "says"),
    [(b"", "the file is empty"), (picture(1), "WAV, MP3 and FLAC"), (b"ID3" + bytes(16 << 20), "the limit is 3600")],
)
def test_files_that_are_no_audio(server: Server, file: bytes, says: str) -> None:
    error = transcribe(server, file).json()["error"]
    assert error["param"] == "file"
    assert says in error["message"]


def test_bodies_that_are_no_form(server: Server) -> None:
    response = server.client.post(PATH, json={"model": "ear"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "Content-Type")
    response = server.client.post(PATH, files={"other": b"a"})
    assert response.json()["error"]["param"] == "file"
    unknown = transcribe(server, other="1")
    assert unknown.headers["x-paddock-ignored-fields"] == "other"


def test_sizes_are_bounded() -> None:
    with Server("-m", "fake:", env={"PADDOCK_SERVER__MAX_BODY_BYTES": "10000"}) as server:
        response = transcribe(server, bytes(20_000), model="fake")
        assert response.status_code == 413


def _form(parts: list[tuple[str, bytes]], boundary: bytes) -> bytes:
    head = b'Content-Disposition: form-data; name="%b"\r\n\r\n'
    made = [b"--%b\r\n" % boundary + head % name.encode() + value + b"\r\n" for name, value in parts]
    return b"".join(made) + b"--%b--\r\n" % boundary


_names = st.text("abcdef_[]", min_size=1, max_size=8).filter(lambda name: name != "file")
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(_names, _texts), max_size=12), st.binary(max_size=200) | st.none())
def test_a_form_is_read_as_it_was_written(fields: list[tuple[str, str]], file: bytes | None) -> None:
    parts = [(name, text.encode()) for name, text in fields]
    if file is not None:
        parts.insert(len(parts) // 2, ("file", file))
    form = parse_form(_form(parts, b"BOUNDARY7d81"), b"BOUNDARY7d81")
    assert form.file == file
    assert {name: [text for other, text in fields if other == name] for name, _ in fields} == form.fields


@given(st.binary(max_size=300) | st.binary(max_size=60).map(lambda data: b"--b\r\n" + data))
def test_any_bytes_are_a_form_or_an_error(data: bytes) -> None:
    try:
        parse_form(data, b"b")
    except InvalidRequest as error:
        assert error.message


@full
def test_transcriptions_are_those_of_llama_server(tmp_path: Path) -> None:
    binary = llama_server_binary()
    tiny_models.llama(tmp_path / "m.gguf")
    tiny_projectors.ultravox(tmp_path / "mmproj.gguf")
    exact = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-c", "2048")
    sent = [{}, {"language": "de"}, {"prompt": "say"}]
    with (
        LlamaServer(binary, tmp_path / "m.gguf", "--mmproj", str(tmp_path / "mmproj.gguf"), *exact) as theirs,
        Server("-m", str(tmp_path / "m.gguf"), *exact) as ours,
    ):
        found = [
            [
                httpx.post(
                    f"{url}{PATH}",
                    data={"temperature": "0", "max_tokens": "16", **more},
                    files={"file": ("a.wav", sound(1))},
                    timeout=200,
                ).json()
                for more in sent
            ]
            for url in (theirs.url, ours.url)
        ]
    for their, our in zip(*found, strict=True):
        assert our["text"] == their["text"]
        assert our["usage"]["input_tokens"] == their["usage"]["input_tokens"]

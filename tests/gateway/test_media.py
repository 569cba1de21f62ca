"""Images over HTTP, in every dialect: what is answered, what is shared, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests import tiny_models, tiny_projectors
from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server, wait_for
from tests.tiers import full
from tests.tiny_projectors import TOKENS, picture, sound

CHAT = "/v1/chat/completions"
TEXT = {"type": "text", "text": "what is it"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a projector beside it, and one without."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "sees").mkdir()
    tiny_models.llama(folder / "sees" / "eye.gguf")
    tiny_projectors.llava(folder / "sees" / "mmproj-eye-f16.gguf")
    tiny_models.llama(folder / "blind.gguf", layers=1)
    (folder / "hears").mkdir()
    tiny_models.llama(folder / "hears" / "ear.gguf")
    tiny_projectors.ultravox(folder / "hears" / "mmproj.gguf")
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Server]:
    with Server("--models-dir", str(models), "-c", "1024", env={"PADDOCK_CHECK_CACHE": "1"}) as server:
        yield server


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def image(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(file)}"}}


def audio(file: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encoded(file), "format": "wav"}}


def body(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(parts)}]
    return {"model": "eye", "messages": messages, "max_tokens": 12, "temperature": 0, **more}


def ask(server: Server, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    response = server.client.post(CHAT, json=body(*parts, **more))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached_tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_second_question_shares_the_image(server: Server) -> None:
    first, again = (ask(server, image(picture(1)), {"type": "text", "text": text}) for text in ("what", "whose"))
    other = ask(server, image(picture(2)), {"type": "text", "text": "what"})
    usage, later = (answer["usage"] for answer in (first, again))
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert later["prompt_tokens_details"]["cached_tokens"] > TOKENS
    assert text_of(other) != text_of(first), "the model sees the difference"
    begin = other["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert begin < later["prompt_tokens_details"]["cached_tokens"] - TOKENS
    plain = ask(server, {"type": "text", "text": "what"})
    assert usage["prompt_tokens"] == plain["usage"]["prompt_tokens"] + TOKENS


@full
@pytest.mark.parametrize("layout", [[], ["-np", "2"]], ids=["unified", "streams"])
def test_a_conversation_about_a_picture_computes_new_tokens_only(tmp_path: Path, layout: list[str]) -> None:
    """With rows and columns as positions (M-RoPE)."""
    tiny_models.positions(tmp_path / "grid.gguf")
    tiny_projectors.qwen(tmp_path / "mmproj.gguf")
    large = image(picture(5, 280, 200))  # seventy tokens
    turns: list[dict[str, Any]] = [{"role": "user", "content": [large, TEXT]}]
    exact = ["-fa", "off", "--cache-type-k", "f32", "--cache-type-v", "f32", "-c", "1024"]
    with Server("-m", str(tmp_path / "grid.gguf"), *exact, *layout, env={"PADDOCK_CHECK_CACHE": "1"}) as server:
        known = 0
        for question in ("and the other", "so is it", "which one is it"):
            answer = ask(server, messages=turns)
            assert text_of(answer) == text_of(ask(server, messages=turns, cache_prompt=False))
            cached = cached_tokens(answer)
            assert (cached > known - 4) if known else (cached == 0), "all of the last prompt"
            known = answer["usage"]["prompt_tokens"]
            turns += [{"role": "assistant", "content": text_of(answer)}, {"role": "user", "content": question}]
        again = ask(server, large, {"type": "text", "text": "whose"})
        counted = [line for line in server.client.get("/metrics").text.splitlines() if "encode_seconds_count" in line]
        other = ask(server, image(picture(6, 280, 200)), TEXT)
        assert cached_tokens(again) >= cached_tokens(other) + 70, "all of the picture"
        assert [line.split()[1] for line in counted] == ["1.0"], "the picture is encoded once"


def test_all_dialects_ask_the_same(server: Server) -> None:
    expected = text_of(ask(server, image(picture(1)), TEXT))
    source = {"type": "base64", "media_type": "image/png", "data": encoded(picture(1))}
    blocks = [{"type": "image", "source": source}, TEXT]
    sent = {"model": "eye", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": blocks}]}
    message = server.client.post("/v1/messages", json=sent).json()
    assert message["content"][0]["text"] == expected
    counted = server.client.post("/v1/messages/count_tokens", json=sent).json()["input_tokens"]
    assert counted == message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]
    parts = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{encoded(picture(1))}"},
        {"type": "input_text", "text": TEXT["text"]},
    ]
    sent = {"model": "eye", "max_output_tokens": 12, "temperature": 0, "input": [{"role": "user", "content": parts}]}
    response = server.client.post("/v1/responses", json=sent).json()
    assert response["output"][0]["content"][0]["text"] == expected
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(**body(image(picture(1)), TEXT), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == expected


def test_images_in_results_of_tools(server: Server) -> None:
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    source = {"type": "base64", "media_type": "image/png", "data": encoded(picture(4))}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    sent = {"model": "eye", "max_tokens": 4, "messages": messages}
    with_image = server.client.post("/v1/messages/count_tokens", json=sent).json()["input_tokens"]
    result["content"] = ""
    without = server.client.post("/v1/messages/count_tokens", json=sent).json()["input_tokens"]
    assert with_image == without + TOKENS


def test_many_at_once_with_schemas_tools_and_several_answers(server: Server) -> None:
    """Concurrent requests get the answers that they get alone."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    variants: list[dict[str, Any]] = [
        {},
        {"n": 3},
        {"tools": [tool], "tool_choice": "required", "max_tokens": 60},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "max_tokens": 60},
        {"deterministic": True, "temperature": 1, "seed": 5},
    ]
    wanted = [body(image(picture(seed)), TEXT, **variant) for variant in variants for seed in (1, 20)]
    alone = [_choices(server, one) for one in wanted]
    with ThreadPoolExecutor(len(wanted)) as threads:
        together = list(threads.map(lambda one: _choices(server, one), wanted))
    # A batch of another size may change a near tie, except in deterministic answers.
    assert together[-2:] == alone[-2:]
    for choices, variant in zip(together, [variant for variant in variants for _ in range(2)], strict=True):
        assert len(choices) == variant.get("n", 1)
        if "tools" in variant:
            assert choices[0]["message"]["tool_calls"][0]["function"]["name"] == "f"
        if "response_format" in variant:
            assert '"a"' in choices[0]["message"]["content"]


def _choices(server: Server, sent: dict[str, Any]) -> list[dict[str, Any]]:
    response = server.client.post(CHAT, json=sent)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["choices"]
    for choice in found:
        for call in choice["message"].get("tool_calls", ()):
            call.pop("id")
    return found


def test_a_receipt_is_the_same_cold_and_warm(server: Server) -> None:
    sent = body(image(picture(30)), TEXT, deterministic=True, receipt=True, seed=1)
    first, second = (server.client.post(CHAT, json=sent).json() for _ in range(2))
    assert text_of(first) == text_of(second)
    assert first["receipt"]["answers"] == second["receipt"]["answers"]


def test_what_a_model_reads_is_listed(server: Server) -> None:
    cards = {card["id"]: card for card in server.client.get("/v1/models").json()["data"]}
    assert cards.keys() == {"eye", "blind", "ear"}, "a projector is no model"
    assert cards["eye"]["architecture"]["input_modalities"] == ["text", "image"]
    assert cards["blind"]["architecture"]["input_modalities"] == ["text"]
    for name, sees, hears in (("eye", True, False), ("blind", False, False), ("ear", False, True)):
        props = server.client.get("/props", params={"model": name}).json()
        assert props["modalities"] == {"vision": sees, "video": False, "audio": hears}


def test_encodings_are_counted(server: Server) -> None:
    """Once for each picture, however often it is asked about."""
    name = "paddock_media_encode_seconds_count"

    def count() -> float:
        lines = server.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and 'model_id="eye"' in line)

    before = count()
    for seed, text in ((71, "what"), (71, "who"), (72, "what")):
        ask(server, image(picture(seed)), {"type": "text", "text": text})
    wait_for(lambda: count() >= before + 2, 30, "the counters of the last answers")
    assert count() == before + 2


def test_audio(server: Server) -> None:
    first, again = (ask(server, audio(sound(1)), {"type": "text", "text": text}, model="ear") for text in ("a", "b"))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 40
    assert first["usage"]["prompt_tokens"] == again["usage"]["prompt_tokens"]
    for wrong, says in (
        (audio(sound(1)[:30]), "unknown format or a broken header"),
        (audio(b"OggS\0\2"), "is Ogg (Vorbis, Opus), which llama.cpp does not decode"),
        (audio(b"\x1aE\xdf\xa3"), "is WebM"),
        (audio(b"ID3" + bytes(16 << 20)), "the limit is 3600"),
        (image(picture(1)), "does not read image input: its projector reads audio input only"),
    ):
        response = server.client.post(CHAT, json=body(wrong, TEXT, model="ear"))
        assert (response.status_code, says in response.json()["error"]["message"]) == (400, True), response.text


def test_ollamas_images(server: Server) -> None:
    expected = text_of(ask(server, image(picture(1)), TEXT))
    options = {"num_predict": 12, "temperature": 0}
    message = {"role": "user", "content": TEXT["text"], "images": [encoded(picture(1))]}
    sent = {"model": "eye", "messages": [message], "stream": False, "options": options}
    assert server.client.post("/api/chat", json=sent).json()["message"]["content"] == expected
    sent = {"model": "eye", "prompt": TEXT["text"], "images": message["images"], "stream": False, "options": options}
    assert server.client.post("/api/generate", json=sent).json()["response"] == expected


def native(server: Server, prompt: Any, path: str = "/completion", **more: Any) -> httpx.Response:
    limit = {"n_predict": 12} if path == "/completion" else {"max_tokens": 12}
    sent = {"model": "eye", "prompt": prompt, "temperature": 0, **limit, **more}
    return server.client.post(path, json=sent)


def test_files_of_llama_servers_own_prompts(server: Server) -> None:
    """What `/apply-template` shows can be sent to `/completion`, with the files."""
    conversation = body(TEXT, image(picture(1)), TEXT)
    expected = text_of(ask(server, TEXT, image(picture(1)), TEXT))
    shown = server.client.post("/apply-template", json=conversation).json()["prompt"]
    marker = server.client.get("/props", params={"model": "eye"}).json()["media_marker"]
    assert shown.count(marker) == 1
    prompt = {"prompt_string": shown, "multimodal_data": [encoded(picture(1))]}
    answer = native(server, prompt).json()
    assert answer["content"] == expected
    assert answer["tokens_evaluated"] > TOKENS
    several = native(server, [prompt, "hello", prompt]).json()
    assert [len(several), several[0]["content"], several[2]["content"]] == [3, expected, expected]
    completion = native(server, prompt, "/v1/completions").json()
    assert completion["choices"][0]["text"] == expected
    streamed = native(server, prompt, "/completion", stream=True).text
    assert streamed.count("data: ") > 5
    heard = {"prompt_string": f"a{marker}b", "multimodal_data": [encoded(sound(1))]}
    assert native(server, heard, model="ear").json()["tokens_evaluated"] > 40


@pytest.mark.parametrize(
    ("prompt", "param", "says"),
    [
        ({"prompt_string": "a", "multimodal_data": [""]}, "prompt.prompt_string", "<__media__> 0 times"),
        ({"prompt_string": "a<__media__>b", "multimodal_data": [1]}, "prompt.multimodal_data", "a list of base64"),
        ({"prompt_string": [1, 2], "multimodal_data": ["a"]}, "prompt", "must be a text"),
        ({"prompt_string": "a<__media__>b", "multimodal_data": ["*"]}, "prompt.multimodal_data[0]", "base64"),
        ({"prompt_string": "a<__media__>", "multimodal_data": [encoded(picture(1))]}, "prompt.multimodal_data[0]", ""),
        (
            {"prompt_string": "a<__media__>b", "multimodal_data": [encoded(sound(1))]},
            *("prompt.multimodal_data[0]", "does not read audio input"),
        ),
        (["a", {"prompt_string": "a<__media__>b", "multimodal_data": ["*"]}], "prompt[1].multimodal_data[0]", "base64"),
        ({"prompt_string": "a", "images": []}, "prompt", "'images' is not supported"),
    ],
)
def test_native_prompts_that_are_refused(server: Server, prompt: Any, param: str, says: str) -> None:
    response = native(server, prompt)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert says in error["message"]


def test_native_files_where_they_are_not_read(server: Server) -> None:
    prompt = {"prompt_string": "a<__media__>b", "multimodal_data": [encoded(picture(1))]}
    error = native(server, prompt, model="blind").json()["error"]
    assert error["param"] == "prompt.multimodal_data[0]"
    assert "does not read images or audio: it has no projector" in error["message"]
    assert "echo and multimodal_data" in native(server, prompt, "/v1/completions", echo=True).json()["error"]["message"]
    vectors = server.client.post("/v1/embeddings", json={"model": "eye", "input": prompt})
    assert (vectors.status_code, "takes text only" in vectors.text) == (400, True)


_HUGE = picture(1)[:16] + b"\0\1\0\0\0\1\0\0" + picture(1)[24:]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (image(picture(1)[:300]), "the image cannot be decoded"),
        (image(b"GIF89a"), "unknown format or a broken header"),
        (image(b"RIFF0000WEBPVP8 "), "is WebP, which llama.cpp does not decode: PNG, JPEG, GIF and BMP are supported"),
        (image(b"\0\0\0\x18ftypheic"), "is HEIC"),
        (image(_HUGE), "65536 x 65536 pixels"),
        (image(b""), "the file is empty"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}, "not valid base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "a data: URL must be"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "does not read http: URLs"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "does not read file: URLs"),
        ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, "expected a data: URL"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "does not read audio input"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(server: Server, part: dict[str, Any], says: str) -> None:
    response = server.client.post(CHAT, json=body(TEXT, part, TEXT))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, f"messages[0].content[1].{_field(part)}")
    assert says in error["message"]


def _field(part: dict[str, Any]) -> str:
    return "image_url.url" if part["type"] == "image_url" else "input_audio.data"


def test_a_model_without_a_projector_refuses(server: Server) -> None:
    response = server.client.post(CHAT, json=body(image(picture(1)), TEXT, model="blind"))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages[0].content[0].image_url.url")
    assert "it has no projector (mmproj)" in error["message"]


def test_images_have_their_place(server: Server) -> None:
    """In messages of users and tools, and before text."""
    for role in ("system", "assistant"):
        messages = [{"role": role, "content": [image(picture(1))]}, {"role": "user", "content": "a"}]
        response = server.client.post(CHAT, json=body(messages=messages))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0]")
    many = server.client.post(CHAT, json=body(*[image(picture(1))] * 65, TEXT))
    assert many.status_code == 400
    assert "the limit is 64" in many.json()["error"]["message"]


def test_too_many_images_for_the_context(server: Server) -> None:
    response = server.client.post(CHAT, json=body(*[image(picture(1))] * 64, TEXT))
    assert response.json()["error"]["code"] == "context_length_exceeded"


@full
def test_options_for_projectors(models: Path, tmp_path: Path) -> None:
    """`--no-mmproj` leaves it out, `--mmproj` names it, and a wrong file is named."""
    eye, projector = str(models / "sees" / "eye.gguf"), str(models / "sees" / "mmproj-eye-f16.gguf")
    with Server("-m", eye, "--no-mmproj") as server:
        assert server.client.get("/props").json()["modalities"]["vision"] is False
    tiny_models.llama(tmp_path / "m.gguf")
    with Server("-m", str(tmp_path / "m.gguf"), "--mmproj", projector, "--no-mmproj-offload") as server:
        assert ask(server, image(picture(1)), TEXT)["usage"]["prompt_tokens"] > TOKENS
    with Server("-m", str(tmp_path / "m.gguf"), env={"LLAMA_ARG_MMPROJ": projector}) as server:
        assert server.client.get("/props").json()["modalities"]["vision"] is True


@full
def test_native_answers_are_those_of_llama_server(tmp_path: Path) -> None:
    binary = llama_server_binary()
    tiny_models.llama(tmp_path / "m.gguf")
    tiny_projectors.llava(tmp_path / "mmproj.gguf")
    exact = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-c", "2048")
    answers: list[dict[str, Any]] = []
    with (
        LlamaServer(binary, tmp_path / "m.gguf", "--mmproj", str(tmp_path / "mmproj.gguf"), *exact) as theirs,
        Server("-m", str(tmp_path / "m.gguf"), *exact) as ours,
    ):
        for url in (theirs.url, ours.url):
            marker = httpx.get(f"{url}/props").json().get("media_marker", "<__media__>")
            prompt = {"prompt_string": f"look {marker} at {marker}: ", "multimodal_data": []}
            prompt["multimodal_data"] = [encoded(picture(1)), encoded(picture(2, 90, 50))]
            sent = {"prompt": prompt, "n_predict": 24, "temperature": 0}
            answers.append(httpx.post(f"{url}/completion", json=sent, timeout=200).json())
    their, our = answers
    assert our["content"] == their["content"]
    assert our["tokens_evaluated"] == their["tokens_evaluated"]


@full
@pytest.mark.parametrize("kind", ["llava", "gemma", "qwen", "ultravox"])
def test_answers_are_those_of_llama_server(kind: str, tmp_path: Path) -> None:
    binary = llama_server_binary()
    text = {
        "llava": tiny_models.llama,
        "gemma": tiny_models.sliding_window,
        "qwen": tiny_models.positions,
        "ultravox": tiny_models.llama,
    }
    text[kind](tmp_path / "m.gguf")
    getattr(tiny_projectors, kind)(tmp_path / "mmproj.gguf")
    exact = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-c", "2048")
    one, two, three = (
        [audio(sound(1)), audio(sound(2)), audio(sound(3, 31))]
        if kind == "ultravox"
        else [image(picture(1)), image(picture(2, 90, 50)), image(picture(3))]
    )
    prompts = [[one, TEXT], [TEXT, one, TEXT], [TEXT, TEXT, two, three, TEXT, TEXT], [TEXT]]
    sent = [body(*parts, max_tokens=24) for parts in prompts]
    with (
        LlamaServer(binary, tmp_path / "m.gguf", "--mmproj", str(tmp_path / "mmproj.gguf"), *exact) as theirs,
        Server("-m", str(tmp_path / "m.gguf"), *exact) as ours,
    ):
        found = [
            [httpx.post(f"{url}{CHAT}", json=each, timeout=200).json() for each in sent]
            for url in (theirs.url, ours.url)
        ]
    for their, our in zip(*found, strict=True):
        assert text_of(our) == text_of(their)
        assert our["usage"]["prompt_tokens"] == their["usage"]["prompt_tokens"]

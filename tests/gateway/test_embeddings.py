"""Embeddings and reranking over HTTP: response shapes with the fake engine, numbers with tiny models."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server import Server, chat_body
from tests.tiers import examples

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
# Without rounding to half precision, so that only the order of additions can differ.
EXACT = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32")


@pytest.fixture(scope="module")
def embedding_server() -> Iterator[Server]:
    with Server("-m", "fake:", "--embedding") as server:
        yield server


@pytest.fixture(scope="module")
def reranking_server() -> Iterator[Server]:
    with Server("-m", "fake:", "--reranking") as server:
        yield server


@pytest.fixture(scope="module")
def bert_server(tiny_models: dict[str, Path]) -> Iterator[Server]:
    with Server("-m", str(tiny_models["embedding"]), *EXACT, "-b", "128") as server:
        yield server


def _post(server: Server, url: str, **body: Any) -> Any:
    response = server.client.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def _refused(server: Server, url: str, status: int, param: str | None, **body: Any) -> str:
    response = server.client.post(url, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    return str(error["message"])


def _vectors(server: Server, inputs: Any, **options: Any) -> list[list[float]]:
    return [item["embedding"] for item in _post(server, EMBEDDINGS, input=inputs, **options)["data"]]


def _near(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-4 for a, b in zip(one, other, strict=True))


# ── OpenAI's embeddings ──────────────────────────────────────────────────────────────────────────────────────────────


def test_embeddings_have_openais_shape(embedding_server: Server) -> None:
    body = _post(embedding_server, EMBEDDINGS, input=["horse", "hay"], model="text-embedding-3-small", user="me")
    first, second = body.pop("data")
    assert {key: first[key] for key in ("object", "index")} == {"object": "embedding", "index": 0}
    assert second["index"] == 1
    assert sum(number**2 for number in first["embedding"]) == pytest.approx(1)
    assert body == {
        "object": "list",
        "model": "text-embedding-3-small",
        "usage": {"prompt_tokens": 10, "total_tokens": 10},
    }


def test_every_form_of_an_input(embedding_server: Server) -> None:
    horse, hay = [256, *b"horse"], [256, *b"hay"]
    one, other = _vectors(embedding_server, ["horse", "hay"])
    for inputs in ("horse", ["horse"], horse, [horse]):
        assert _vectors(embedding_server, inputs) == [one]
    assert _vectors(embedding_server, [horse, hay]) == [one, other]
    assert _vectors(embedding_server, ["horse", hay]) == [one, other]


def test_texts_and_tokens_are_mixed_as_in_llama_server(embedding_server: Server) -> None:
    one, other = _vectors(embedding_server, ["horse", "hay"])
    assert _vectors(embedding_server, [256, *b"ho", "rse"]) == [one], "a list with a number is one input"
    assert _vectors(embedding_server, ["hay", [256, "horse"], {"prompt_string": "hay"}]) == [other, one, other]
    parts = {"content": [{"type": "text", "text": "ho"}, {"type": "text", "text": "rse"}]}
    assert _vectors(embedding_server, parts) == [one]
    assert _vectors(embedding_server, [parts, "hay"]) == [one, other]
    image = {"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    assert "image_url" in _refused(embedding_server, EMBEDDINGS, 400, "input", input=image)


def test_content_has_llama_servers_shape_below_v1_too(embedding_server: Server) -> None:
    native = _post(embedding_server, "/embedding", content=["horse", "hay"], embd_normalize=-1)
    assert _post(embedding_server, EMBEDDINGS, content=["horse", "hay"], embd_normalize=-1) == native
    (raw,) = _vectors(embedding_server, "hay", embd_normalize=-1)
    assert [raw] == native[1]["embedding"]


def test_base64_equals_floats(embedding_server: Server) -> None:
    (numbers,) = _vectors(embedding_server, "horse")
    (item,) = _post(embedding_server, EMBEDDINGS, input="horse", encoding_format="base64")["data"]
    assert item["encoding_format"] == "base64"
    packed = item["embedding"]
    assert list(struct.unpack(f"<{len(numbers)}f", base64.b64decode(packed))) == numbers


def test_truncated_vectors_are_normalized(embedding_server: Server) -> None:
    (whole,) = _vectors(embedding_server, "a horse and a mare")
    (short,) = _vectors(embedding_server, "a horse and a mare", dimensions=9)
    length = sum(number**2 for number in whole[:9]) ** 0.5
    assert _near(short, [number / length for number in whole[:9]])
    message = _refused(embedding_server, EMBEDDINGS, 400, "dimensions", input="x", dimensions=27)
    assert "27" in message and "26" in message


@pytest.mark.parametrize("inputs", ["", [], [""], ["horse", ""], [[]], [[1], []], None, 7, {"a": 1}, [None], [[[1]]]])
def test_invalid_input_is_refused(embedding_server: Server, inputs: Any) -> None:
    _refused(embedding_server, EMBEDDINGS, 400, "input", input=inputs)


def test_unsupported_values_are_refused_by_name(embedding_server: Server) -> None:
    _refused(embedding_server, EMBEDDINGS, 400, "input")
    _refused(embedding_server, EMBEDDINGS, 400, "input[1]", input=["x", [260]])
    _refused(embedding_server, EMBEDDINGS, 400, "input", input=[-1])
    _refused(embedding_server, EMBEDDINGS, 400, "input", input=["x"] * 2049)
    _refused(embedding_server, EMBEDDINGS, 400, "encoding_format", input="x", encoding_format="int8")
    for dimensions in (0, -1, 2**70, 1.5):
        _refused(embedding_server, EMBEDDINGS, 400, "dimensions", input="x", dimensions=dimensions)


def test_an_input_that_is_too_long_is_refused_with_both_numbers(embedding_server: Server, bert_server: Server) -> None:
    message = _refused(embedding_server, EMBEDDINGS, 400, "input[1]", input=["x", "y" * 512])
    assert "513" in message and "512" in message
    message = _refused(bert_server, EMBEDDINGS, 400, "input", input="the " * 127)
    assert "128" in message
    assert len(_vectors(bert_server, "a " * 126)) == 1, "just what fits"
    for text in ("a" * 10_000_000, "😀" * 200_000):
        _refused(bert_server, EMBEDDINGS, 400, "input", input=text)


def test_more_inputs_than_fit_into_a_step(embedding_server: Server, bert_server: Server) -> None:
    texts = [f"a horse and {'a mare ' * (n % 9)} of {n}" for n in range(100)]
    for server in (embedding_server, bert_server):
        together = _vectors(server, texts)
        assert len(together) == 100
        for place in (0, 17, 99):
            assert _near(together[place], _vectors(server, texts[place])[0])


# ── llama-server's own ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("url", ["/embedding", "/embeddings"])
def test_native_embeddings_have_llama_servers_shape(embedding_server: Server, url: str) -> None:
    one, other = _vectors(embedding_server, ["horse", "hay"])
    expected = [{"index": 0, "embedding": [one]}, {"index": 1, "embedding": [other]}]
    assert _post(embedding_server, url, content=["horse", "hay"]) == expected
    assert _post(embedding_server, url, input="horse", encoding_format="float") == expected[:1]
    (raw,) = _post(embedding_server, url, content="hhh", embd_normalize=-1)
    assert sorted(raw["embedding"][0])[-2:] == [1, 3]
    (scaled,) = _post(embedding_server, url, content="hhh", embd_normalize=0)
    assert max(scaled["embedding"][0]) == 32760
    (taxicab,) = _post(embedding_server, url, content="hhh", embd_normalize=1)
    assert sum(taxicab["embedding"][0]) == pytest.approx(1)


def test_native_embeddings_refuse_invalid_fields(embedding_server: Server) -> None:
    _refused(embedding_server, "/embedding", 400, "content")
    _refused(embedding_server, "/embedding", 400, "content", content="x", input="x")
    _refused(embedding_server, "/embedding", 400, "content", content="")
    _refused(embedding_server, "/embedding", 400, "input", input="y" * 512)
    _refused(embedding_server, "/embedding", 400, "embd_normalize", content="x", embd_normalize=65)


def test_without_pooling_every_token_has_a_vector(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["embedding"]), "--pooling", "none", *EXACT) as server:
        both = _post(server, "/embedding", content=["a b c", "in"])
        assert [len(item["embedding"]) for item in both] == [5, 4]
        assert {len(row) for item in both for row in item["embedding"]} == {64}
        (normal,) = _post(server, "/embedding", content="a b c", embd_normalize=2)
        assert sum(number**2 for number in normal["embedding"][2]) == pytest.approx(1, abs=1e-4)
        assert "/embeddings" in _refused(server, EMBEDDINGS, 400, "model", input="x")


def test_an_answer_that_would_be_too_large_is_refused() -> None:
    with Server("-m", "fake:", "--pooling", "none") as server:
        message = _refused(server, "/embedding", 400, "content", content=["x" * 500] * 2000)
        assert "1002000 vectors" in message
        assert len(_post(server, "/embedding", content="x" * 500)[0]["embedding"]) == 501


# ── reranking ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("url", ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking"])
def test_documents_are_sorted_by_score(reranking_server: Server, url: str) -> None:
    body = _post(reranking_server, url, query="abc", documents=["xyz", {"text": "abc"}, "ab", ""], model="any")
    assert body == {
        "model": "any",
        "object": "list",
        "usage": {"prompt_tokens": 24, "total_tokens": 24},
        "results": [
            {"index": 1, "relevance_score": 3.0},
            {"index": 2, "relevance_score": 2.0},
            {"index": 0, "relevance_score": 0.0},
            {"index": 3, "relevance_score": 0.0},
        ],
    }


def test_top_n_and_return_documents(reranking_server: Server) -> None:
    documents = ["xyz", {"text": "abc"}, "ab"]
    body = _post(reranking_server, RERANK, query="abc", documents=documents, top_n=2, return_documents=True)
    assert body["results"] == [
        {"index": 1, "relevance_score": 3.0, "document": {"text": "abc"}},
        {"index": 2, "relevance_score": 2.0, "document": {"text": "ab"}},
    ]
    assert len(_post(reranking_server, RERANK, query="abc", documents=documents, top_n=10)["results"]) == 3


@pytest.mark.parametrize("url", ["/v1/rerank", "/rerank"])
def test_texts_have_the_shape_of_tei(reranking_server: Server, url: str) -> None:
    texts = ["xyz", "abc", "ab"]
    assert _post(reranking_server, url, query="abc", texts=texts, raw_scores=True) == [
        {"index": 1, "score": 3.0},
        {"index": 2, "score": 2.0},
        {"index": 0, "score": 0.0},
    ]
    best = _post(reranking_server, url, query="abc", texts=texts, return_text=True, top_n=1)
    assert best == [{"index": 1, "score": 3.0, "text": "abc"}]
    _refused(reranking_server, url, 400, "documents", query="abc", texts=texts, documents=texts)
    _refused(reranking_server, url, 400, "texts", query="abc", texts=[])
    _refused(reranking_server, url, 400, "return_documents", query="abc", texts=texts, return_documents=True)
    _refused(reranking_server, url, 400, "return_text", query="abc", documents=texts, return_text=True)


def test_invalid_rerank_is_refused_by_name(reranking_server: Server) -> None:
    _refused(reranking_server, RERANK, 400, "query", documents=["x"])
    _refused(reranking_server, RERANK, 400, "query", query="", documents=["x"])
    _refused(reranking_server, RERANK, 400, "documents", query="x")
    _refused(reranking_server, RERANK, 400, "documents", query="x", documents=[])
    _refused(reranking_server, RERANK, 400, "documents", query="x", documents="x")
    for document in (1, None, {"title": "x"}, {"text": 1}, {"text": "x", "title": "y"}):
        _refused(reranking_server, RERANK, 400, "documents[1]", query="x", documents=["y", document])
    _refused(reranking_server, RERANK, 400, "top_n", query="x", documents=["y"], top_n=0)
    message = _refused(reranking_server, RERANK, 400, "documents[1]", query="x", documents=["y", "z" * 511])
    assert "513" in message and "512" in message


def test_score_does_not_depend_on_other_documents(tiny_models: dict[str, Path]) -> None:
    documents = ["the mare", "an inn on the hill, or is it?", "no", "hay " * 20]
    with Server("-m", str(tiny_models["reranking"]), *EXACT) as server:
        body = _post(server, RERANK, query="who is on the hill?", documents=documents)
        scores = [result["relevance_score"] for result in body["results"]]
        assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4
        for result in body["results"]:
            alone = _post(server, RERANK, query="who is on the hill?", documents=[documents[result["index"]]])
            assert alone["results"][0]["relevance_score"] == pytest.approx(result["relevance_score"], abs=1e-4)


# ── kinds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_of_another_kind_are_refused(tiny_models: dict[str, Path]) -> None:
    with Server("--models-dir", str(tiny_models["llama"].parent), "-t", "1", "-c", "256") as server:
        kinds = {card["id"]: card["kind"] for card in server.client.get("/v1/models").json()["data"]}
        assert (kinds["llama"], kinds["embedding"], kinds["reranking"]) == ("generation", "embedding", "reranking")
        for model in ("embedding", "reranking"):
            for url, body in (
                ("/v1/chat/completions", chat_body("hi")),
                ("/v1/completions", {"prompt": "hi"}),
                ("/completion", {"prompt": "hi"}),
            ):
                assert "generate" in _refused(server, url, 400, "model", **body, model=model)
            assert server.client.post(f"/slots/0?action=erase&model={model}").status_code == 501
        assert "--embedding" in _refused(server, EMBEDDINGS, 501, "model", input="hi", model="reranking")
        _refused(server, "/embedding", 501, "model", content="hi", model="reranking")
        for model in ("llama", "embedding"):
            message = _refused(server, RERANK, 501, "model", query="hi", documents=["ho"], model=model)
            assert "--reranking" in message
        assert server.workers() == [], "nothing was loaded to say no"
        assert len(_vectors(server, "hi", model="embedding")[0]) == 64
        assert _post(server, "/v1/completions", prompt="hi", max_tokens=2, model="llama")["choices"]
        props = server.client.get("/props?model=embedding").json()
        assert (props["kind"], props["pooling"], props["total_slots"]) == ("embedding", "mean", 1)
        (slot,) = server.client.get("/slots?model=embedding").json()
        assert (slot["kind"], slot["is_processing"]) == ("embedding", False)
        assert {slot["kind"] for slot in server.client.get("/slots?model=llama").json()} == {"generation"}


def test_generating_model_with_embedding_flag(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["llama"]), "--embeddings", "--pooling", "last", *EXACT) as server:
        one, other, again = _vectors(server, ["the horse", "the mare", "the horse"])
        assert _near(one, again) and not _near(one, other)
        _refused(server, "/v1/chat/completions", 400, "model", **chat_body("hi"))


# ── random inputs ────────────────────────────────────────────────────────────────────────────────────────────────────

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@examples(200)
@given(_json, _json)
def test_any_input_is_answered_or_refused(bert_server: Server, inputs: Any, dimensions: Any) -> None:
    body = {"input": inputs, "dimensions": dimensions}
    _answered_or_refused(bert_server.client.post(EMBEDDINGS, content=json.dumps(body)))


@examples(200)
@given(st.text(max_size=50), st.lists(st.text(max_size=50) | _json, max_size=4), _json)
def test_any_pair_is_answered_or_refused(
    reranking_server: Server, query: str, documents: list[Any], top_n: Any
) -> None:
    body = {"query": query, "documents": documents, "top_n": top_n}
    _answered_or_refused(reranking_server.client.post(RERANK, content=json.dumps(body)))


def _answered_or_refused(response: httpx.Response) -> None:
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["message"]


def test_questions_about_text_are_answered_too(embedding_server: Server, reranking_server: Server) -> None:
    for one in (embedding_server, reranking_server):
        assert one.client.post("/tokenize", json={"content": "ab"}).json() == {"tokens": [97, 98]}
        assert one.client.post("/detokenize", json={"tokens": [97]}).json() == {"content": "a"}

"""`GET /live` over HTTP: the data that it shows."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gateway.live_viewer import CHAT, Viewer, busy_slots, write_config
from tests.server import Server, chat_body, events
from tests.tiers import full

CONTRACT = Path(__file__).parents[2] / "web" / "src" / "api" / "live.ts"
# The limits of worker/view_publisher.py.
MOST_SPANS, LONGEST_TEXT = 400, 120


def _interfaces() -> dict[str, set[str]]:
    """The fields of each interface in the source of the page."""
    text = re.sub(r"/\*\*.*?\*/", "", CONTRACT.read_text(), flags=re.DOTALL)
    return {
        name: set(re.findall(r"^  (\w+)\??:", body, flags=re.MULTILINE))
        for name, body in re.findall(r"export interface (\w+) \{\n(.*?)\n\}", text, flags=re.DOTALL)
    }


def test_events_have_the_fields_that_the_page_expects() -> None:
    shapes = _interfaces()
    with Server("-m", "fake:") as server, Viewer(server) as viewer:
        server.chat("say: hello")
        (model,) = viewer.until(lambda models: models["fake"]["totals"]["requests"]).values()
        tree = viewer.tree("fake", lambda tree: tree["nodes"])
        state = viewer.state()
    assert state.keys() == shapes["LiveState"]
    assert state["memory"].keys() == state["gpu_memory"].keys() == {"limit", "used"}
    assert model.keys() == shapes["LiveModel"]
    assert model["totals"].keys() == shapes["Totals"]
    assert {slot_name for slot in model["slots"] for slot_name in slot} == shapes["Slot"]
    for histogram in (model["first_token"], model["inter_token"]):
        assert histogram.keys() == shapes["Histogram"]
        assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
    assert tree.keys() == shapes["Tree"]
    assert tree["cells"].keys() == {"total", "used"}
    assert tree["stored"].keys() == {"limit", "used"}
    assert {name for node in tree["nodes"] for name in node} == shapes["TreeNode"]


def test_replicas_have_the_fields_that_the_page_expects(tmp_path: Path) -> None:
    shapes = _interfaces()
    models = {"pooled": {"path": "fake:", "replicas": 2}}
    config = write_config(tmp_path, model_manager={"models": models})
    with Server("--config", config) as server, Viewer(server) as viewer:
        assert viewer.state()["models"][0]["replicas"][0].keys() == shapes["Replica"]
        server.chat("say: hello", model="pooled")
        prefixes = viewer.prefixes("pooled", lambda found: found["prefixes"])
        assert prefixes.keys() == shapes["Prefixes"]
        assert prefixes["prefixes"][0].keys() == shapes["Prefix"]


def test_the_live_view_loads_nothing() -> None:
    with Server("-m", "fake:") as server, Viewer(server) as viewer:
        for _ in range(3):
            (model,) = viewer.state()["models"]
            assert (model["state"], model["slots"], model["waiting"], model["context"]) == ("unloaded", [], 0, None)
            assert sum(model["totals"].values()) == sum(model["first_token"]["counts"]) == 0
        assert server.workers() == []
        assert viewer.events == ["state"] * 3


def test_slots_are_shown_during_a_step_that_hangs() -> None:
    at_once = {"PADDOCK_SERVER__SHUTDOWN_GRACE": "0"}
    with ThreadPoolExecutor(3) as pool, Server("-m", "fake:hang=1", "-np", "2", env=at_once) as server:
        server.chat("say: hello")
        for _ in range(3):
            pool.submit(server.client.post, CHAT, json=chat_body("hang: up"))
        with Viewer(server) as viewer:
            # A request that arrives during the step gets no slot before the step ends.
            model = viewer.until(lambda models: len(busy_slots(models["fake"])) + models["fake"]["waiting"] == 3)[
                "fake"
            ]
            assert model["leaves_in"] is None
            for slot in busy_slots(model):
                assert slot["state"] == "prompt"
                assert slot["prompt_tokens"] > slot["prompt_done"] == slot["cached_tokens"]
            assert viewer.until(lambda models: models["fake"]["slots"])["fake"]["slots"] == model["slots"]


def test_an_answer_is_shown_in_its_slot_and_then_in_the_totals() -> None:
    with Server("-m", "fake:delay=0.02", "-np", "3") as server, Viewer(server) as viewer:
        with server.client.stream("POST", CHAT, json=chat_body("say: " + "x" * 200, stream=True)) as response:
            stream = events(response)
            next(stream)
            models = viewer.until(lambda models: any(slot["state"] == "answer" for slot in models["fake"]["slots"]))
            (slot,) = busy_slots(models["fake"])
            assert slot["prompt_done"] == slot["prompt_tokens"] > 200
            assert 0 < slot["answered_tokens"] <= 200
            assert slot["key"] is None, "the server has no keys"
            assert len(models["fake"]["slots"]) == 3
            hot = viewer.tree("fake", lambda tree: any(node["hot"] for node in tree["nodes"]))
            assert [node["slots"] for node in hot["nodes"]] == [[slot["id"]]]
            assert hot["cells"]["used"] > 200
            list(stream)
        model = viewer.until(
            lambda models: models["fake"]["totals"]["requests"] and models["fake"]["totals"]["answered_tokens"] > 200
        )["fake"]
        assert model["totals"]["prompt_tokens"] == slot["prompt_tokens"]
        assert sum(model["first_token"]["counts"]) == 1
        assert sum(model["inter_token"]["counts"]) == 200
        assert 0 < model["leaves_in"] <= 300
        # It is copied to host memory when no request has come for a moment.
        stored = viewer.tree("fake", lambda tree: all(node["stored"] and not node["hot"] for node in tree["nodes"]))
        assert all(node["slots"] == [] for node in stored["nodes"])
        assert stored["stored"]["used"] > 0


def test_guessed_tokens_are_shown_in_the_slot_and_in_the_totals() -> None:
    options = ("-m", "fake:draft=4,delay=0.02", "--spec-type", "draft", "-np", "1")
    with Server(*options) as server, Viewer(server) as viewer:
        with server.client.stream("POST", CHAT, json=chat_body("say: " + "x" * 200, stream=True)) as response:
            stream = events(response)
            next(stream)
            models = viewer.until(lambda models: any(slot["accepted_tokens"] for slot in models["fake"]["slots"]))
            (slot,) = busy_slots(models["fake"])
            assert 0 < slot["accepted_tokens"] < slot["drafted_tokens"], "every fourth one is wrong"
            *_, (_, last), _ = stream
        timings = json.loads(last)["timings"]
        totals = viewer.until(
            lambda models: models["fake"]["totals"]["accepted_tokens"] >= timings["draft_n_accepted"]
        )["fake"]["totals"]
        assert (totals["drafted_tokens"], totals["accepted_tokens"]) == (
            timings["draft_n"],
            timings["draft_n_accepted"],
        )


def _is_written_back(tree: dict[str, Any]) -> bool:
    """All spans are in host memory, and no request runs: the tree does not change any more."""
    return all(node["stored"] and not node["hot"] for node in tree["nodes"])


def test_a_shared_prefix_is_one_span_with_its_hits() -> None:
    system = {"role": "system", "content": "You know everything about horses. " * 12}
    with Server("-m", "fake:") as server:
        for word in ("one", "two", "three"):
            messages = [system, {"role": "user", "content": f"say: {word}"}]
            assert server.client.post(CHAT, json={"messages": messages}).status_code == 200
        with Viewer(server) as viewer:
            tree = viewer.tree("fake", _is_written_back)
    (root,) = [node for node in tree["nodes"] if node["parent"] is None]
    assert root["start"] == 0
    assert root["tokens"] > 400, "one span, although it was computed and stored in pieces"
    assert root["hits"] == 2
    assert "You know everything about horses." in root["text"]
    assert len(root["text"]) == LONGEST_TEXT
    assert {node["start"] for node in tree["nodes"] if node["parent"] == root["id"]} == {root["tokens"]}
    assert (tree["hits"], tree["misses"], tree["omitted"]) == (2, 1, 0)


@full
def test_an_unchanged_tree_is_not_sent_again() -> None:
    with Server("-m", "fake:") as server:
        server.chat("say: hello")
        with Viewer(server) as viewer:
            viewer.tree("fake", _is_written_back)
            sent = viewer.events.count("tree")
            for _ in range(3):
                viewer.state()
            assert viewer.events.count("tree") == sent
            server.chat("say: goodbye")
            viewer.tree("fake", lambda tree: len(tree["nodes"]) > 1)


def test_a_large_tree_is_shown_in_part() -> None:
    prompts = [f"{number:03} {'abc' * 10}" for number in range(450)]
    with Server("-m", "fake:", "-np", "8") as server:
        for first in range(0, len(prompts), 50):
            body = {"prompt": prompts[first : first + 50], "max_tokens": 1}
            assert server.client.post("/v1/completions", json=body).status_code == 200
        with Viewer(server) as viewer:
            tree = viewer.tree("fake")
    assert 0 < len(tree["nodes"]) <= MOST_SPANS
    assert tree["omitted"] > 50
    ids = {node["id"] for node in tree["nodes"]}
    assert all(node["parent"] in ids for node in tree["nodes"] if node["parent"] is not None)


def test_the_text_of_spans_of_a_real_model(demo_server: Server) -> None:
    body = {"prompt": "What does a heron eat? <|im_end|>", "max_tokens": 1}
    assert demo_server.client.post("/v1/completions", json=body).status_code == 200
    with Viewer(demo_server) as viewer:
        (name,) = viewer.until(lambda models: any(model["state"] == "loaded" for model in models.values()))
        tree = viewer.tree(name)
    texts = [node["text"] for node in tree["nodes"]]
    assert any("heron eat? <|im_end|>" in text for text in texts), "special tokens are shown by name"
    assert tree["cells"]["total"] >= 1024


@full
def test_models_without_a_prefix_tree(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    models = {kind: {"path": str(tiny_models[kind])} for kind in ("embedding", "recurrent")}
    with (
        Server("--config", write_config(tmp_path, model_manager={"models": models})) as server,
        Viewer(server) as viewer,
    ):
        body = {"model": "embedding", "input": ["the grass", "a heron"]}
        assert server.client.post("/v1/embeddings", json=body).status_code == 200
        for text in ("the the the the", "the the the the", "the the the of the of the of"):
            server.chat(text * 8, model="recurrent", max_tokens=2)
        found = viewer.until(lambda models: all(model["slots"] for model in models.values()))
        assert (found["embedding"]["kind"], found["recurrent"]["kind"]) == ("embedding", "generation")
        assert [slot["state"] for slot in found["embedding"]["slots"]] == ["idle"]
        tree = viewer.tree("recurrent", lambda tree: any(node["stored"] and node["hits"] for node in tree["nodes"]))
        assert not any(node["hot"] for node in tree["nodes"])
        assert "embedding" not in viewer.trees


@full
def test_a_load_shows_its_progress_and_a_failure_its_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"nothing")
    models = {
        "slow": {"path": "fake:load=4"},
        "broken": {"path": str(broken)},
        "wrong": {"path": "fake:nonsense=1"},
    }
    config = write_config(tmp_path, model_manager={"models": models, "memory_limit": "4GiB"})
    with Server("--config", config) as server, Viewer(server) as viewer:
        state = viewer.state()
        assert state["memory"]["used"] == 0
        assert 0 < state["memory"]["limit"] <= 4 * 2**30
        assert {model["id"]: model["state"] for model in state["models"]} == {
            "slow": "unloaded", "broken": "failed", "wrong": "unloaded"
        }  # fmt: skip
        assert server.client.post("/models/load", json={"model": "slow"}).status_code == 200
        loading = viewer.until(lambda models: models["slow"]["state"] == "loading")["slow"]
        assert 0 <= loading["progress"] <= 1
        loaded = viewer.until(lambda models: models["slow"]["state"] == "loaded")["slow"]
        assert (loaded["progress"], loaded["reason"]) == (None, None)
        assert loaded["context"] > 0
        assert server.client.post("/admin/load", json={"model": "wrong"}).status_code == 503
        failed = viewer.until(lambda models: models["wrong"]["state"] == "failed")
        assert "nonsense" in failed["wrong"]["reason"]
        assert failed["broken"]["reason"]


def test_a_state_of_many_models_is_small(tmp_path: Path) -> None:
    models = {f"model-{number}": {"path": "fake:", "parallel": 4} for number in range(20)}
    config = write_config(tmp_path, model_manager={"models": models})
    with Server("--config", config) as server, Viewer(server) as viewer:
        assert len(json.dumps(viewer.state(), separators=(",", ":"))) < 16_000

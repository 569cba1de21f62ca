from __future__ import annotations

import importlib.util
import random
import re
import signal
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli import main
from paddock_lab.prefix_cache.designs import FIRST, HIT, JOINS, MISS, RETURNS, WARM_UP, Sizes, removal, tenants
from paddock_lab.prefix_cache.experiment import Observation
from paddock_lab.prefix_cache.findings import quantization_note, removal_findings, tenant_findings
from tests.lab.runs import FAKE, page, raw, run, running, table
from tests.lab.stand_in import KEY, stand_in, url_of
from tests.server import alive, wait_for
from tests.tiers import full

_SMALL = ("--a-tokens", "60", "--b-tokens", "30", "--max-tokens", "2")

# ── designs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 5), st.integers(0, 2**32))
def test_a_hit_extends_the_warm_up_and_a_miss_has_another_prefix(a: int, b: int, trials: int, seed: int) -> None:
    texts = set()
    for warm_up, hit, miss in removal(Sizes(a, b), trials, random.Random(seed)):
        assert (warm_up.kind, hit.kind, miss.kind) == (WARM_UP, HIT, MISS)
        assert not warm_up.answer and hit.answer and miss.answer
        assert hit.messages[: len(warm_up.messages)] == warm_up.messages
        assert miss.messages == hit.messages[2:]
        assert miss.messages[0] != hit.messages[0]
        for messages in (warm_up.messages, hit.messages, miss.messages):
            roles = [message["role"] for message in messages]
            assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        texts |= {message["content"] for message in hit.messages if message["role"] == "user"}
    assert len(texts) == 3 * trials


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 2**32))
def test_tenants_share_a_and_continue_their_own_conversations(count: int, visits: int, seed: int) -> None:
    (steps,) = tenants(Sizes(50, 20), 1, random.Random(seed), count=count, visits=visits)
    kinds = [step.kind for step in steps]
    assert kinds[0] == FIRST
    assert (kinds.count(JOINS), kinds.count(RETURNS)) == (count - 1, count * (visits - 1))
    assert len({step.messages[0]["content"] for step in steps}) == 1
    for tenant in range(count):
        own = [step.messages for step in steps if step.tenant == tenant]
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(own))
        others = {step.messages[2]["content"] for step in steps if step.tenant != tenant}
        assert own[0][2]["content"] not in others


# ── findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _observation(backend: str, kind: str, ttft: float, **more: object) -> Observation:
    return Observation(0.0, 1, more.pop("dropped", False), backend, kind, ttft=ttft, **more)  # type: ignore[arg-type]


def test_the_ratio_leaves_out_warm_up_trials() -> None:
    observations = [
        *(_observation("x", HIT, 0.010 + number / 1e4, prompt_tokens=90, cached_tokens=80) for number in range(8)),
        *(_observation("x", MISS, 0.080 + number / 1e4, prompt_tokens=30, cached_tokens=0) for number in range(8)),
        _observation("x", HIT, 99.0, dropped=True),
        *(_observation("x", WARM_UP, 1.0, prompt_tokens=80, remembered_tokens=cached) for cached in (80, 81, 0)),
        Observation(0.0, 1, False, "y", WARM_UP, error="connection lost"),
    ]
    found = removal_findings(observations, ["x", "y"])
    (line,) = found.summary
    assert line.startswith("x: without A the first token takes 7.76 times as long (95 % interval 7.")
    assert "80 of 90 prompt tokens were cached on a hit, 0 of 30 prompt tokens were cached on a miss" in line
    assert found.notes == [
        "y: 1 requests failed, the first with: connection lost",
        "x: 1 of 3 times no slot had the prompt after its warm-up",
    ]
    assert found.tables[0].rows[0][:2] == ("x", 8)


def test_tenants_are_compared_with_the_first_backend() -> None:
    times = {"slot": 0.1, "tree": 0.02}
    observations = [
        _observation(backend, kind, times[backend] + number / 1e4)
        for backend in times
        for kind in (FIRST, JOINS, RETURNS)
        for number in range(6)
    ]
    found = tenant_findings(observations, ["tree", "slot"])
    assert len(found.tables[0].rows) == 6
    returns = next(line for line in found.summary if line.startswith("slot: when a tenant returns"))
    assert "4.95 times as long as with tree (95 % interval" in returns


@pytest.mark.parametrize(
    ("bits", "listed", "warns"),
    [
        ({"a": 8.5}, "a 8.5", False),
        ({"a": 8.5, "b": 8.5001}, "a 8.5, b 8.5", False),
        ({"a": 8.5, "b": 4.9}, "a 8.5, b 4.9", True),
        ({"a": 8.5, "vllm": None}, "a 8.5, vllm unknown", True),
    ],
)
def test_the_note_on_quantization_warns_about_different_weights(
    bits: dict[str, float | None], listed: str, warns: bool
) -> None:
    note = quantization_note(bits)
    assert f"in bits per weight: {listed}." in note
    assert ("Compare the times of two backends only if" in note) == warns


def test_no_observations_give_no_summary() -> None:
    assert removal_findings([], ["x"]).summary == tenant_findings([], ["x"]).summary == []


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


@full
def test_two_servers_in_one_run_one_of_them_minimal(tmp_path: Path) -> None:
    with stand_in("Hay", " and", " oats") as server:
        status, output = run(
            "prefix-cache", *_SMALL, "--trials", "5", "--pin-slot", "1", "--out", str(tmp_path),
            "--server", f"fake={FAKE}", "--server", f"other={url_of(server)}",
        )  # fmt: skip
    assert status == 0, output
    observations = raw(tmp_path)
    assert len(observations) == 2 * 3 * 6
    assert [each["dropped"] for each in observations] == [True] * 6 + [False] * 30
    hits = [each for each in observations if each["backend"] == "fake" and each["kind"] == HIT]
    assert all(each["cached_tokens"] >= 60 <= each["remembered_tokens"] for each in hits)
    assert {(each["kind"], each["output_tokens"]) for each in observations if each["backend"] == "fake"} == {
        *((WARM_UP, 1), (HIT, 2), (MISS, 2)),
    }
    assert {each["output_tokens"] for each in observations if each["backend"] == "other"} == {None}
    fake, other = sorted(table(tmp_path), key=lambda row: row["backend"])
    assert float(fake["T3 / T2 low"]) <= float(fake["T3 / T2"]) <= float(fake["T3 / T2 high"])
    assert float(fake["T2 cached"]) > float(fake["T3 cached"])
    assert (other["trials"], other["T2 cached"], other["T3 prompt tokens"]) == ("5", "", "")
    assert "other refuses stream_options" in output and "other has no /slots" in output
    assert server.bodies[0]["model"] == "stand-in" and "id_slot" not in server.bodies[0]
    text = page(tmp_path)
    for part in (
        "Prefix cache",
        "paddock lab prefix-cache",
        "fake: without A",
        "xllamacpp",
        "GiB",
        "(paddock 0.",
    ):
        assert part in text
    assert "Partial" not in text


@full
def test_the_report_masks_the_key(tmp_path: Path) -> None:
    with stand_in("Hay") as server:
        status, output = run(
            "prefix-cache", *_SMALL, "--trials", "1", "--out", str(tmp_path),
            "--server", url_of(server), "--api-key", KEY,
        )  # fmt: skip
    assert status == 0, output
    assert "--api-key ***" in page(tmp_path)


@full
def test_tenants_reuse_the_shared_prefix(tmp_path: Path) -> None:
    status, output = run(
        "prefix-cache", "--design", "tenants", "--tenants", "4", "--visits", "2", *_SMALL, "--trials", "2",
        "--server", f"fake={FAKE}", "--out", str(tmp_path),
    )  # fmt: skip
    assert status == 0, output
    observations = raw(tmp_path)
    assert len(observations) == 3 * 4 * 2
    assert all(each["cached_tokens"] >= 60 for each in observations if each["kind"] != FIRST)
    assert all(each["cached_tokens"] < 60 for each in observations if each["kind"] == FIRST)
    assert [row["kind"] for row in table(tmp_path)] == [RETURNS, JOINS, FIRST]
    assert "when a tenant returns" in page(tmp_path)


@full
def test_the_binding_is_measured_with_both_templates(tmp_path: Path, demo_model: Path) -> None:
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    status, output = run(
        "prefix-cache", "--binding", str(demo_model), *_SMALL, "--trials", "1", "--warm-up", "0", "--out", str(tmp_path)
    )
    assert status == 0, output
    observations = raw(tmp_path)
    assert {each["backend"] for each in observations} == {"binding", "binding-jinja"}
    for each in observations:
        share = each["cached_tokens"] / each["prompt_tokens"]
        assert share > 0.7 if each["kind"] == HIT else share < 0.5
        assert each["remembered_tokens"] >= each["prompt_tokens"]
        assert each["output_tokens"] == 1
    text = page(tmp_path)
    assert re.search(r"Quantization, in bits per weight: binding \d+\.\d, binding-jinja \d+\.\d\.", text)


@full
def test_an_interrupted_run_has_a_report(tmp_path: Path) -> None:
    endless = ("--trials", "100000", "--warm-up", "0")
    with running("prefix-cache", *_SMALL, *endless, "--server", f"fake={FAKE}", "--out", str(tmp_path)) as process:
        file = tmp_path / "raw.jsonl"
        wait_for(lambda: file.exists() and file.read_text().count("\n") > 20, 100, "some observations")
        servers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "Interrupted; the report:" in output
    assert "Partial" in page(tmp_path)
    assert len(raw(tmp_path)) > 20
    assert table(tmp_path)[0]["backend"] == "fake"
    assert servers and not any(alive(pid) for pid in servers)


def test_a_failing_server_is_reported(tmp_path: Path) -> None:
    with stand_in("Hay") as server:
        status, output = run(
            "prefix-cache", *_SMALL, "--trials", "1", "--out", str(tmp_path), "--api-key", "wrong",
            "--server", f"shut={url_of(server)}",
        )  # fmt: skip
    assert status == 1
    assert "shut: 1 requests failed, the first with: HTTP 401" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--server", "a=x {model}"], "--model is needed"),
        (["--server", "a=x", "--server", "a=y"], "needs a different name"),
        (["--server", "a=no-such-program-anywhere"], "no-such-program-anywhere"),
        (["--trials", "0"], "--trials"),
    ],
)
def test_usage_errors_name_the_flag(args: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["lab", "prefix-cache", "--out", str(tmp_path), *args])
    assert result.exit_code in (1, 2)
    assert message in result.output


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    result = CliRunner().invoke(main, ["lab", "prefix-cache", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "not an empty folder" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]

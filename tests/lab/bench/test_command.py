from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from paddock.cli import main
from tests.lab import runs
from tests.lab.runs import FAKE, page, raw, table
from tests.lab.stand_in import stand_in, url_of
from tests.server import alive, wait_for
from tests.tiers import full

pytestmark = full

_SLOW = "{python} -m paddock serve -m fake:delay=0.02 -np 4 --port {port}"
_TINY = ("--prompt", "uniform:10-20", "--output", "4", "--rounds", "1")

run = partial(runs.run, group=("bench",))
running = partial(runs.running, group=("bench",))


def _requests(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    return [
        each for each in raw(folder) if each["record"] == "request" and each["kind"] in (kinds or ("first", "later"))
    ]


def test_a_curve_on_two_servers(tmp_path: Path) -> None:
    status, output = run(
        "--concurrency", "1,3", "--requests-per-client", "2", *_TINY[:4], "--rounds", "5", "--out", str(tmp_path),
        "--server", f"quick={FAKE}", "--server", f"slow={_SLOW}",
    )  # fmt: skip
    assert status == 0, output
    counts = Counter((each["load"], each["server"]) for each in _requests(tmp_path))
    assert counts == {
        (load, server): requests
        for load, requests in (("load, 1 at once", 10), ("load, 3 at once", 30))
        for server in ("quick", "slow")
    }
    assert len(_requests(tmp_path, "warm-up")) == 5 * 2 * 2
    assert all(each["tokens"] == 4 == len(each["times"]) for each in _requests(tmp_path))
    rows = table(tmp_path)
    assert [(row["load"], row["server"], row["failed"]) for row in rows] == [
        (load, server, "0") for load in ("load, 1 at once", "load, 3 at once") for server in ("quick", "slow")
    ]
    for row in rows:
        assert float(row["tokens/s low"]) <= float(row["tokens/s"]) <= float(row["tokens/s high"])
    assert (tmp_path / "load-ttft-over-load.png").exists() and (tmp_path / "load-tokens-over-load.png").exists()
    text = page(tmp_path)
    for part in (
        "Servers under load",
        "to the first token as quick",
        "times as good as slow",
        "Resident memory",
        "paddock bench",
        "GiB",
    ):
        assert part in text
    orders = [
        tuple(dict.fromkeys(each["server"] for each in _requests(tmp_path) if each["round"] == number))
        for number in range(5)
    ]
    assert all(sorted(order) == ["quick", "slow"] for order in orders)


def test_a_scenario_with_several_loads(tmp_path: Path) -> None:
    scenario = tmp_path / "loads.toml"
    scenario.write_text(
        "[load.burst]\nconcurrency = 3\nrequests_per_client = 1\nshared_prefix = 90\noutput = 2\n"
        "passes = ['cold', 'warm']\n"
        "[load.stall]\nconcurrency = 2\nrequests_per_client = 1\noutput = 30\ninterference = 200\n"
        "interference_at_once = 2\ninterference_after = 5\n"
        "[load.other]\n"
    )
    out = tmp_path / "out"
    status, output = run(
        str(scenario),
        "--load",
        "burst",
        "--load",
        "stall",
        "--rounds",
        "1",
        "--server",
        f"fake={_SLOW}",
        "--out",
        str(out),
    )
    assert status == 0, output
    by_load = Counter(each["load"] for each in _requests(out))
    assert by_load == {"burst, cold": 3, "burst, warm": 3, "stall": 2}
    assert all(each["cached_tokens"] >= 90 for each in _requests(out) if each["load"] == "burst, warm")
    assert min(each["cached_tokens"] for each in _requests(out) if each["load"] == "burst, cold") < 90
    streams, late = (_requests(out, kind) for kind in ("first", "long"))
    streaming = max(each["sent"] + each["times"][4] for each in streams if each["load"] == "stall")
    assert len(late) == 2 and all(each["sent"] >= streaming and each["prompt_tokens"] > 200 for each in late)
    assert "stall: longest stall (ms): fake" in output and "stall: first token, long prompts (ms): fake" in output
    assert (out / "stall-timeline.png").exists()
    assert "load burst" in page(out)


def test_copies_put_the_load_on_several_processes(tmp_path: Path) -> None:
    scenario = tmp_path / "loads.toml"
    scenario.write_text(
        "[load.alone]\nconcurrency = 1\nrequests = 2\n"
        "[load.both]\nconcurrency = 1\nrequests = 2\ncopies = 2\nagainst = 'alone'\n"
    )
    out = tmp_path / "out"
    with stand_in("Hay") as server:
        status, output = run(
            str(scenario), *_TINY, "--server", f"fake={FAKE}", "--server", f"far={url_of(server)}", "--out", str(out)
        )
    assert status == 0, output
    counts = Counter((each["load"], each["server"]) for each in _requests(out))
    assert counts == {("alone", "fake"): 2, ("alone", "far"): 2, ("both", "fake"): 4}
    assert "both: fake has" in output and "times the tokens/s of alone" in output
    assert "both on far was skipped: a server at a URL cannot be started again" in output


def test_interleaved_conversations_on_a_minimal_server(tmp_path: Path) -> None:
    with stand_in("Hay", " and", " oats") as server:
        status, output = run(
            "--concurrency", "1", "--requests", "6", "--turns", "2", "--interleaved", "--warm-up", "0", *_TINY,
            "--server", f"other={url_of(server)}", "--out", str(tmp_path),
        )  # fmt: skip
    assert status == 0, output
    assert [each["kind"] for each in _requests(tmp_path)] == ["first"] * 3 + ["later"] * 3
    histories = [body["messages"] for body in server.bodies[1:]]
    assert [len(messages) for messages in histories] == [1, 1, 1, 3, 3, 3]
    for first, second in zip(histories[:3], histories[3:], strict=True):
        assert second[:2] == [*first, {"role": "assistant", "content": "Hay and oats"}]
    assert "other refuses stream_options" in output
    assert "6 answers were shorter than requested" in output
    assert "later turns" in page(tmp_path)


def test_random_arrivals_and_clients_that_disconnect(tmp_path: Path) -> None:
    dialogue = tmp_path / "dialogue.jsonl"
    dialogue.write_text(
        json.dumps({"conversations": [{"from": "human", "value": "Hay?"}, {"from": "gpt", "value": "Yes."}]})
    )
    out = tmp_path / "out"
    status, output = run(
        "--rate", "50", "--requests", "12", "--cancel-share", "1", "--conversations", str(dialogue), "--output", "50",
        "--rounds", "1", "--server", f"fake={_SLOW}", "--out", str(out),
    )  # fmt: skip
    assert status == 0, output
    requests = _requests(out)
    assert len(requests) == 12
    assert all(each["left"] and 1 <= each["tokens"] < 50 for each in requests)
    sent = [each["sent"] for each in requests]
    assert max(sent) - min(sent) > 0
    assert table(out)[0]["left early"] == "12"


def test_refusals_are_counted_by_kind(tmp_path: Path) -> None:
    small = "{python} -m paddock serve -m fake:delay=0.05 -np 1 --max-queue 1 --port {port}"
    status, output = run(
        "--concurrency", "8", "--requests-per-client", "1", "--output", "20", "--rounds", "1",
        "--server", f"small={small}", "--out", str(tmp_path),
    )  # fmt: skip
    assert status == 0, output
    failed = [each for each in _requests(tmp_path) if each["error"]]
    assert failed and {each["error"] for each in failed} == {"HTTP 429"}
    assert f"load on small: {len(failed)} of 9 requests failed" in output
    assert "HTTP 429" in page(tmp_path)


def test_a_load_with_a_duration(tmp_path: Path) -> None:
    status, output = run(
        "--duration",
        "0.3",
        "--concurrency",
        "2",
        "--shared-prefix",
        "30",
        *_TINY,
        "--server",
        f"fake={FAKE}",
        "--out",
        str(tmp_path),
    )
    assert status == 0, output
    begun = min(each["sent"] for each in _requests(tmp_path))
    assert any(each["sent"] > begun for each in _requests(tmp_path))


def test_an_interrupted_run_has_a_report(tmp_path: Path) -> None:
    with running("--rounds", "100000", *_TINY[:4], "--server", f"fake={FAKE}", "--out", str(tmp_path)) as process:
        file = tmp_path / "raw.jsonl"
        wait_for(lambda: file.exists() and file.read_text().count("\n") > 50, 100, "some observations")
        servers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "Interrupted; the report:" in output
    assert "Partial" in page(tmp_path)
    assert table(tmp_path)[0]["server"] == "fake"
    assert servers and not any(alive(pid) for pid in servers)


def test_a_server_that_refuses_chat_is_named(tmp_path: Path) -> None:
    with stand_in("Hay") as server:
        status, output = run("--api-key", "wrong", "--server", f"shut={url_of(server)}", "--out", str(tmp_path))
    assert status == 1
    assert "shut does not answer a chat request: HTTP 401" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prompt", "long"], "`prompt`"),
        (["--concurrency", "1,x"], "--concurrency"),
        (["--concurrency", "0"], "concurrency"),
        (["--rate", "1", "--concurrency", "1"], "exactly one of concurrency, rate"),
        (["--shared-share", "2"], "shared_share"),
        (["--load", "burst"], "unknown load 'burst'"),
        (["--server", "a=x {model}"], "--model is needed"),
        (["--conversations", __file__], "not JSON"),
        (["no-such-file.toml"], "no-such-file.toml"),
    ],
)
def test_usage_errors_name_the_flag(args: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bench", "--out", str(tmp_path), *args])
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "paddock.cli.bench", raising=False)
    result = CliRunner().invoke(main, ["bench"])
    assert result.exit_code == 1
    assert "the lab needs matplotlib: pip install paddock-lab" in result.output

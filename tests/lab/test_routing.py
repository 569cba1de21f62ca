"""The routing simulation: the model of a replica, the policies, and the command."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli import main
from paddock_lab.routing.findings import Result, findings
from paddock_lab.routing.machines import BLOCK_TOKENS, MACHINES, Machine
from paddock_lab.routing.policies import POLICIES
from paddock_lab.routing.replica import Replica, Request
from paddock_lab.routing.simulation import SINGLE, Outcome, Setting, simulate
from paddock_lab.routing.traffic import Mix, Traffic
from tests.lab.runs import page, raw, run, running, table
from tests.server import alive, wait_for
from tests.tiers import full

_SMALL = Machine("small", slots=2, cache_blocks=64, prefill_rate=100, first=0.1, growth=0.5)
_CONVERSATIONS = Mix(users=10, one_offs=0, bursts=0)
_POOL = Setting("prefix", 4, 1, True, MACHINES["two-cores"], _CONVERSATIONS, warm_up=300, seconds=600, seed=1)


def _request(tokens: int, answer: int = 10, first: int = 0) -> Request:
    blocks = tuple(first + number for number in range(-(-tokens // BLOCK_TOKENS)))
    return Request(blocks, tokens, answer, blocks, None)


def _drive(replica: Replica, arrivals: list[tuple[float, Request]]) -> list[Request]:
    """Simulate all arrivals. Returns the requests in order of completion."""
    ended: list[Request] = []

    def until(end: float) -> None:
        while (time := replica.next) is not None and time <= end:
            ended.extend(replica.advance_to(time))

    for time, request in arrivals:
        until(time)
        request.arrived = time
        replica.accept(request, time)
        assert len(replica._prefilling) + len(replica._decoding) <= replica.machine.slots
    until(float("inf"))
    return ended


# ── a replica ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_single_request_runs_at_full_speed() -> None:
    replica = Replica(_SMALL)
    (ended,) = _drive(replica, [(5.0, _request(200, answer=30))])
    assert ended.first_token == pytest.approx(5 + 200 / 100 + 0.1)
    assert replica.now == pytest.approx(5 + 200 / 100 + 30 * 0.1)
    (again,) = _drive(replica, [(100.0, _request(200))])
    assert again.cached == 199
    assert again.first_token == pytest.approx(100 + 1 / 100 + 0.1)


def test_a_burst_computes_a_shared_prompt_once() -> None:
    ended = _drive(Replica(_SMALL), [(0.0, _request(640)) for _ in range(5)])
    assert sorted(request.cached for request in ended) == [0, 639, 639, 639, 639]


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 500), st.integers(1, 50), st.integers(0, 3)), min_size=1))
def test_every_request_is_answered_and_none_before_its_prefill(
    drawn: list[tuple[float, int, int, int]],
) -> None:
    time, arrivals = 0.0, []
    for gap, tokens, answer, first in drawn:
        time += gap
        arrivals.append((time, _request(tokens, answer, first * 1000)))
    replica = Replica(_SMALL)
    ended = _drive(replica, arrivals)
    assert sorted(map(id, ended)) == sorted(id(request) for _, request in arrivals)
    assert replica.busy == 0
    for request in ended:
        assert 0 <= request.cached < request.tokens
        assert request.first_token - request.arrived >= (request.tokens - request.cached) / 100
    assert replica.now >= sum(request.tokens - request.cached for request in ended) / 100


# ── traffic ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_begins_with_the_blocks_of_the_previous_one() -> None:
    traffic = Traffic(replace(_CONVERSATIONS, turns=1000, users=1, prompts=3), 1, 100, seed=5)
    ((_, before),) = traffic.independent_requests()
    for _ in range(8):
        found = traffic.after(before, 1.0)
        assert found is not None
        time, following = found
        assert time > 1.0
        assert following.chain[: len(before.blocks_after)] == before.blocks_after
        assert following.tokens > before.tokens + before.answer
        before = following


def test_the_traffic_of_a_user_does_not_depend_on_others() -> None:
    alone, among = (Traffic(replace(_CONVERSATIONS, bursts=bursts), 2, 100, seed=3) for bursts in (0, 0.5))
    ours, theirs = (
        [each for each in traffic.independent_requests() if each[1].user == 7] for traffic in (alone, among)
    )
    assert [(time, request.chain) for time, request in ours] == [(time, each.chain) for time, each in theirs]


# ── replicas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@full
@pytest.mark.parametrize("mix", [_CONVERSATIONS, Mix()], ids=["conversations", "with bursts and single requests"])
def test_four_replicas_reach_nine_tenths_of_the_hit_rate_of_a_single_one(mix: Mix) -> None:
    hits = {
        policy: simulate(replace(_POOL, policy=policy, mix=mix)).hit_rate
        for policy in (SINGLE, "prefix", "round-robin")
    }
    assert hits["prefix"] >= 0.9 * hits[SINGLE], hits
    assert hits["round-robin"] < 0.85 * hits[SINGLE], hits


@full
def test_a_hundred_replicas_keep_the_hit_rate_and_balance_the_load() -> None:
    setting = replace(_POOL, replicas=100, mix=Mix(), warm_up=60, seconds=60)
    results = {
        policy: simulate(replace(setting, policy=policy)) for policy in (SINGLE, "prefix", "least-busy", "first-block")
    }
    assert results["prefix"].hit_rate >= 0.9 * results[SINGLE].hit_rate
    assert results["prefix"].hit_rate > 2 * results["least-busy"].hit_rate
    assert results["prefix"].busiest < results["first-block"].busiest / 2
    assert results["prefix"].first_token_95 < min(
        results["least-busy"].first_token_95, results["first-block"].first_token_95
    )


def test_the_same_seed_gives_the_same_figures() -> None:
    setting = replace(_POOL, mix=Mix(), warm_up=10, seconds=60, routers=3, stay=False)
    assert simulate(setting) == simulate(setting) != simulate(replace(setting, seed=2))


@full
@pytest.mark.parametrize(("machine", "answers"), [("h200", 8), ("h200", 16), ("two-cores", 4)])
def test_the_throughput_of_one_machine_matches_the_calculation(machine: str, answers: int) -> None:
    """The calculation in docs/explanation/scaling.md: 100 new tokens per turn, answers of 130, 20 s of thinking."""
    speed = MACHINES[machine]
    seconds_of_a_request = 100 / speed.prefill_rate + 130 * speed.step(answers) / answers
    mix = replace(_CONVERSATIONS, users=round(20 / seconds_of_a_request + answers))
    results = simulate(replace(_POOL, policy=SINGLE, replicas=1, machine=speed, mix=mix, warm_up=100, seconds=300))
    assert results.requests / 300 == pytest.approx(1 / seconds_of_a_request, rel=0.15)


# ── findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


_OUTCOME = Outcome(requests=100, hit_rate=0.9, first_token=0.5, first_token_95=2.0, busiest=1.5, load=2.0)


def _results(policy: str, hit_rate: float, slowest: float, seeds: int = 6) -> list[Result]:
    """One policy with several seeds. Each seed has slower first tokens than the previous one."""
    return [
        (
            replace(_POOL, policy=policy, seed=seed),
            replace(_OUTCOME, hit_rate=hit_rate, first_token_95=slowest * (1 + seed / 10)),
        )
        for seed in range(seeds)
    ]


def test_every_policy_is_compared_with_paddocks_seed_by_seed() -> None:
    results = [*_results(SINGLE, 0.9, 1.0), *_results("prefix", 0.855, 2.0), *_results("round-robin", 0.45, 8.0)]
    found = findings([*results, *_results("thresholds", 0.88, 1.6)])
    ours, others = found.summary
    assert ours.startswith(
        "4 replicas, prefix: 86 % of prompt tokens are cached, 95 % of the hit rate of one replica as large as"
    )
    assert others == (
        "4 replicas, first token (95th percentile) relative to prefix: better than prefix: thresholds 0.800 (0.800 "
        "to 0.800); prefix is better: round-robin 4.00 (4.00 to 4.00)."
    )
    assert [row[1] for row in found.tables[0].rows] == [SINGLE, "prefix", "round-robin", "thresholds"]
    assert [picture.name for picture in found.pictures] == ["policies"]
    assert findings([]).summary == []


def test_few_seeds_or_intervals_that_include_one_show_no_difference() -> None:
    few = findings([*_results("prefix", 0.8, 2.0, seeds=2), *_results("sticky", 0.8, 1.0, seeds=2)])
    assert few.summary[1].endswith("no difference shown: sticky 0.500 (of 2).")
    mixed = [(setting, replace(outcome, first_token_95=2.0)) for setting, outcome in _results("sticky", 0.8, 2.0)]
    same = findings([*_results("prefix", 0.8, 1.6), *mixed])
    assert "no difference shown: sticky 1." in same.summary[1] and "better" not in same.summary[1]


@full
def test_the_command_writes_a_report(tmp_path: Path) -> None:
    status, output = run(
        "routing", "--replicas", "2", "--replicas", "3", "--warm-up", "5", "--seconds", "40", "--seeds", "2",
        "--out", str(tmp_path),
    )  # fmt: skip
    assert status == 0, output
    for policy in POLICIES:
        assert output.count(f"{policy}: ") + output.count(f" {policy} ") >= 2
    results = raw(tmp_path)
    assert len(results) == 2 * 2 * (1 + len(POLICIES) + 2)
    assert {each["seed"] for each in results} == {1, 2}
    assert {each["policy"] for each in results} == {SINGLE, *POLICIES}
    assert [row["policy"] for row in table(tmp_path)].count("prefix, 4 routers, any") == 2
    assert "of the hit rate of one replica as large as all" in page(tmp_path)


@full
def test_an_interrupted_run_has_a_report_and_leaves_no_process(tmp_path: Path) -> None:
    small = ("--replicas", "2", "--warm-up", "5", "--seconds", "40", "--seeds", "1000", "--jobs", "2")
    with running("routing", *small, "--out", str(tmp_path)) as process:
        file = tmp_path / "raw.jsonl"
        wait_for(lambda: file.exists() and file.read_text().count("\n") > 20, 100, "some simulations")
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        for pid in (process.pid, *children):
            os.kill(pid, signal.SIGINT)  # as a terminal does
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "Interrupted; the report:" in output and "Traceback" not in output
    assert "Partial" in page(tmp_path)
    assert children
    wait_for(lambda: not any(alive(pid) for pid in children), 20, "the child processes to end")


def test_traffic_without_requests_is_an_error(tmp_path: Path) -> None:
    none = ["--users", "0", "--one-offs", "0", "--bursts", "0"]
    result = CliRunner().invoke(main, ["lab", "routing", *none, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "no request was answered" in result.output

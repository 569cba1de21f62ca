"""The policy on random situations and simulations; no process, no clock."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.failures import Failures
from paddock.fleet.lifecycle.policy import Candidate, Decision, Limits, Phase, decide
from tests.tiers import examples

NOW = 1000.0
_moments = st.floats(0, NOW)


@st.composite
def _situations(draw: st.DrawFn) -> tuple[list[Candidate], Limits]:
    """Any reachable situation: the loaded models fit."""
    limits = Limits(
        memory=draw(st.fixed_dictionaries({"host": st.integers(5, 30)}, optional={"gpu": st.integers(5, 30)})),
        models=draw(st.none() | st.integers(1, 4)),
    )
    models: list[Candidate] = []
    for number in range(draw(st.integers(1, 7))):
        phase = draw(st.sampled_from(get_args(Phase)))
        model = Candidate(
            f"m{number}",
            {"host": draw(st.integers(0, 20)), "gpu": draw(st.integers(0, 20))},
            phase,
            busy=draw(st.booleans()),
            resident_until=NOW + draw(st.floats(-10, 10)),
            last_used=draw(_moments),
            idle_timeout=draw(st.sampled_from([0.0, 100.0])),
            pinned=draw(st.booleans()),
            waiting_since=draw(st.none() | _moments),
        )
        there = [one for one in [*models, model] if one.phase != "unloaded"]
        models.append(model if _fit(there, limits) else replace(model, phase="unloaded"))
    return models, limits


def _fit(models: list[Candidate], limits: Limits) -> bool:
    few = limits.models is None or len(models) <= limits.models
    return few and all(sum(one.needs[device] for one in models) <= most for device, most in limits.memory.items())


@given(_situations())
def test_decisions_respect_the_limits(situation: tuple[list[Candidate], Limits]) -> None:
    models, limits = situation
    by_name = {model.name: model for model in models}
    decision = decide(models, limits, NOW)
    assert len(set(decision.load)) == len(decision.load)
    assert len(set(decision.unload)) == len(decision.unload)
    for name in decision.load:
        assert by_name[name].phase == "unloaded"
        assert by_name[name].waiting_since is not None
    for name in decision.unload:
        model = by_name[name]
        assert model.phase == "loaded"
        assert not model.pinned
        assert not model.busy or model.resident_until <= NOW
    there = [model for model in models if model.phase != "unloaded"] + [by_name[name] for name in decision.load]
    assert _fit(there, limits), "no model is loaded before its memory is free"


@examples(500)
@given(_situations())
def test_no_needless_unloads(situation: tuple[list[Candidate], Limits]) -> None:
    """An unloaded model has passed its idle timeout, or the waiting model would not fit beside it."""
    models, limits = situation
    decision = decide(models, limits, NOW)
    waiting = [model for model in models if model.phase == "unloaded" and model.waiting_since is not None]
    for name in decision.unload:
        model = next(model for model in models if model.name == name)
        idle = not model.busy and model.idle_timeout and NOW - model.last_used >= model.idle_timeout
        assert idle or waiting
        if not idle and len(waiting) == 1:
            staying = [one for one in models if one.phase in ("loaded", "loading") and one.name not in decision.unload]
            assert not _fit([*staying, model, *waiting], limits), "this unload is not needed"


@given(_situations())
def test_decide_is_idempotent(situation: tuple[list[Candidate], Limits]) -> None:
    models, limits = situation
    decision = decide(models, limits, NOW)
    after = [
        replace(model, phase="loading", waiting_since=None)
        if model.name in decision.load
        else replace(model, phase="unloading")
        if model.name in decision.unload
        else model
        for model in models
        if model.name not in decision.impossible
    ]
    again = decide(after, limits, NOW)
    assert again.load == []


@examples(500)
@given(_situations())
def test_the_longest_waiting_model_is_served_first(situation: tuple[list[Candidate], Limits]) -> None:
    models, limits = situation
    decision = decide(models, limits, NOW)
    waiting = [
        model
        for model in models
        if model.phase == "unloaded" and model.waiting_since is not None and model.name not in decision.impossible
    ]
    if waiting:
        oldest = min(waiting, key=lambda model: (model.waiting_since, model.name))
        if oldest.name not in decision.load:
            # Its memory stays reserved, even if every evictable model is unloaded.
            there = [one for one in models if one.phase in ("loaded", "loading") and one.name not in decision.unload]
            loaded = [one for one in models if one.name in decision.load]
            movable = [one for one in there if one.phase == "loaded" and not one.pinned]
            staying = [one for one in there if one not in movable]
            assert _fit([*staying, oldest], limits) <= _fit([*staying, *loaded, oldest], limits)


def test_lru_and_no_more_than_needed() -> None:
    models = [
        Candidate("old", {"host": 4}, "loaded", last_used=1),
        Candidate("older", {"host": 2}, "loaded", last_used=0),
        Candidate("new", {"host": 4}, "loaded", last_used=2),
        Candidate("wanted", {"host": 4}, waiting_since=3),
    ]
    assert decide(models, Limits({"host": 10}), NOW).unload == ["old"]
    assert decide(models, Limits({"host": 12}), NOW).unload == ["older"]


def test_idle_models_are_unloaded_first() -> None:
    models = [
        Candidate("busy", {"host": 4}, "loaded", busy=True, last_used=0),
        Candidate("idle", {"host": 4}, "loaded", last_used=9),
        Candidate("wanted", {"host": 4}, waiting_since=10),
    ]
    assert decide(models, Limits({"host": 10}), NOW).unload == ["idle"]
    assert decide(
        [*models[:2], Candidate("wanted", {"host": 8}, waiting_since=10)], Limits({"host": 10}), NOW
    ).unload == [
        "idle",
        "busy",
    ]


def test_memory_is_reserved_for_the_longest_waiting_model() -> None:
    models = [
        Candidate("there", {"host": 6}, "loaded", busy=True, resident_until=NOW + 3),
        Candidate("first", {"host": 8}, waiting_since=1),
        Candidate("second", {"host": 4}, waiting_since=2),
    ]
    assert decide(models, Limits({"host": 10}), NOW).load == []
    assert decide(models, Limits({"host": 18}), NOW).load == ["first", "second"]


def test_a_model_that_can_never_fit() -> None:
    models = [
        Candidate("pinned", {"host": 6}, "loaded", pinned=True),
        Candidate("wanted", {"host": 6}, waiting_since=3),
    ]
    decision = decide(models, Limits({"host": 10}), NOW)
    shortage = decision.impossible["wanted"]
    assert (shortage.device, shortage.needed, shortage.limit, shortage.pinned) == ("host", 6, 10, 6)
    assert shortage.pinned_models == ("pinned",)


def test_minimum_residence() -> None:
    models = [
        Candidate("there", {"host": 6}, "loaded", busy=True, resident_until=NOW + 3),
        Candidate("wanted", {"host": 6}, waiting_since=3),
    ]
    decision = decide(models, Limits({"host": 10}), NOW)
    assert (decision.unload, decision.recheck_at) == ([], NOW + 3)
    assert decide(models, Limits({"host": 10}), NOW + 3).unload == ["there"]


def test_idle_timeout() -> None:
    models = [
        Candidate("idle", {}, "loaded", last_used=NOW - 300, idle_timeout=300),
        Candidate("soon", {}, "loaded", last_used=NOW - 299, idle_timeout=300),
        Candidate("busy", {}, "loaded", busy=True, last_used=0, idle_timeout=300),
        Candidate("pinned", {}, "loaded", last_used=0, idle_timeout=300, pinned=True),
        Candidate("forever", {}, "loaded", last_used=0),
    ]
    decision = decide(models, Limits(), NOW)
    assert (decision.unload, decision.recheck_at) == (["idle"], NOW + 1)


# ── simulations ───────────────────────────────────────────────────────────────────────────────────────────────────

STAY, LOAD, SERVICE = 5.0, 2.0, 3.0


@dataclass
class _Simulation:
    """Models, random requests, and a lifecycle that follows the decisions."""

    sizes: dict[str, int]
    limits: Limits
    now: float = 0.0
    phase: dict[str, Phase] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    queue: dict[str, list[float]] = field(default_factory=dict)
    resident_until: dict[str, float] = field(default_factory=dict)
    last_used: dict[str, float] = field(default_factory=dict)
    events: list[tuple[float, int, str, str]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    loads: int = 0
    _count: int = 0

    def schedule(self, moment: float, kind: str, name: str) -> None:
        self._count += 1
        heapq.heappush(self.events, (moment, self._count, kind, name))

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(
                name,
                {"host": size},
                self.phase.get(name, "unloaded"),
                busy=self.running.get(name, 0) > 0,
                resident_until=self.resident_until.get(name, 0.0),
                last_used=self.last_used.get(name, 0.0),
                waiting_since=min(self.queue.get(name, []), default=None),
            )
            for name, size in self.sizes.items()
        ]

    def run(self, chance: random.Random) -> None:
        while self.events:
            self.now, _, kind, name = heapq.heappop(self.events)
            match kind:
                case "arrives":
                    self.queue.setdefault(name, []).append(self.now)
                    if self.phase.get(name) == "loaded":
                        self._serve(name, chance)
                case "loaded":
                    self.phase[name], self.resident_until[name] = "loaded", self.now + STAY
                    self._serve(name, chance)
                case "ends":
                    self.running[name] -= 1
                    self.last_used[name] = self.now
                    if self.phase[name] == "unloading" and not self.running[name]:
                        self.phase[name] = "unloaded"
            self._act(decide(self.candidates(), self.limits, self.now))

    def _serve(self, name: str, chance: random.Random) -> None:
        for since in self.queue.pop(name, []):
            self.waits.append(self.now - since)
            self.running[name] = self.running.get(name, 0) + 1
            self.schedule(self.now + chance.uniform(0, SERVICE), "ends", name)

    def _act(self, decision: Decision) -> None:
        assert not decision.impossible
        for name in decision.unload:
            self.phase[name] = "unloading" if self.running.get(name) else "unloaded"
        for name in decision.load:
            self.phase[name] = "loading"
            self.loads += 1
            self.schedule(self.now + LOAD, "loaded", name)
        there = [name for name, phase in self.phase.items() if phase != "unloaded"]
        assert sum(self.sizes[name] for name in there) <= self.limits.memory["host"]
        if decision.unload and not all(self.running.get(name) for name in decision.unload):
            self._act(
                decide(self.candidates(), self.limits, self.now)
            )  # idle models are unloaded at once, so there is memory now
        elif decision.recheck_at is not None:
            self.schedule(decision.recheck_at, "recheck", "")


@examples(40)
@given(st.integers(), st.integers(2, 6))
def test_no_starvation(seed: int, count: int) -> None:
    chance = random.Random(seed)
    sizes = {f"m{number}": chance.randint(1, 8) for number in range(count)}
    simulation = _Simulation(sizes, Limits({"host": chance.randint(8, 20)}))
    arrivals = 1000
    for _ in range(arrivals):
        simulation.schedule(chance.uniform(0, 600), "arrives", chance.choice(list(sizes)))
    simulation.run(chance)
    assert len(simulation.waits) == arrivals
    # Each model before it may stay for its residence, finish its requests and be replaced by a load.
    assert max(simulation.waits) <= count * (STAY + SERVICE + LOAD)


def test_no_thrashing() -> None:
    chance = random.Random(1)
    simulation = _Simulation({"a": 6, "b": 6}, Limits({"host": 8}))
    for second in range(3000):
        simulation.schedule(second / 5, "arrives", chance.choice("ab"))
    simulation.run(chance)
    assert len(simulation.waits) == 3000
    # One load per residence in 600 seconds, not one per request.
    assert simulation.loads <= 600 / STAY + 2


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_backoff_grows() -> None:
    failures = Failures()
    pauses = []
    for _ in range(10):
        failures.failed("it crashed", NOW)
        pauses.append(failures.pause(NOW))
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert failures.pause(NOW + 59) == pytest.approx(1)
    failures.succeeded()
    assert (failures.pause(NOW), failures.reason) == (0, "")

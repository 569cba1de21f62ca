"""Compares the speed of two libraries with a model, and keeps the result."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from paddock.cli.native.checking import Speed, measure_speed
from paddock.fleet.catalogue.demo import find_demo
from paddock.libraries import BUILT, PINNED, VARIABLES, Cpu, Found, cache_folder, candidates, this_cpu

_FILE = "speed.json"
_ROUNDS = 3
_ENOUGH = 60.0
"""No further round begins after so many seconds: a slow or busy machine needs minutes for one."""
_UNDISTURBED = 0.8
"""The least share of the CPU that a library must have had, for a round to count."""
_NOTICEABLE = 1.05
SLOWER = 0.9
"""A build whose prompts or stream have a lower ratio is slower. Ratios nearer to 1 are noise."""


class MachineBusy(Exception):
    """Other programs used the CPU, so a comparison would be of them."""


class Comparison(msgspec.Struct, frozen=True):
    """How much faster the compiled library is than the other one, on this CPU."""

    cpu: Cpu
    source: str
    """What was compiled."""
    other: str
    """The origin of the other library."""
    model: str
    threads: int
    prompt: float
    """Tokens per second of prompt processing, as a ratio."""
    stream: float
    """The same for one stream."""
    measured_at: float

    @property
    def is_faster(self) -> bool:
        return max(self.prompt, self.stream) >= _NOTICEABLE

    def __str__(self) -> str:
        return f"prompts {self.prompt:.2f} times, one stream {self.stream:.2f} times as fast"


def ratios(rounds: list[tuple[Speed, Speed]]) -> tuple[float, float]:
    """The medians of prompt and stream, of the ratios within rounds that no other program disturbed. Raises
    `MachineBusy` if there is none.
    """
    shares = [min(native.cpu_share, other.cpu_share) for native, other in rounds]
    counted = [both for both, share in zip(rounds, shares, strict=True) if share >= _UNDISTURBED]
    if not counted:
        raise MachineBusy(f"other programs use the CPU: {max(shares):.0%} of it was left")
    return (
        statistics.median(native.prompt / other.prompt for native, other in counted),
        statistics.median(native.stream / other.stream for native, other in counted),
    )


def compare(
    native: Path,
    other: Path,
    model: Path,
    threads: int,
    on_round: Callable[[int, int], None] = lambda number, count: None,
    rounds: int = _ROUNDS,
) -> tuple[float, float]:
    """The ratios, of rounds in which each library is measured once. Raises `NativeQueryFailed` and `MachineBusy`."""
    measured: list[tuple[Speed, Speed]] = []
    begun = time.monotonic()
    for number in range(rounds):
        if measured and time.monotonic() - begun > _ENOUGH:
            break
        on_round(number + 1, rounds)
        both = {path: measure_speed(path, model, threads) for path in _in_turn(native, other, number)}
        measured.append((both[native], both[other]))
    return ratios(measured)


def _in_turn(native: Path, other: Path, number: int) -> tuple[Path, Path]:
    """Which one is first alternates."""
    return (native, other) if number % 2 == 0 else (other, native)


def save(folder: Path, comparison: Comparison) -> None:
    new = folder / f"{_FILE}.new"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(comparison)))
    new.replace(folder / _FILE)


def load(folder: Path, cpu: Cpu) -> Comparison | None:
    """What was measured on this CPU. It stays true without the build, so it is a reason to build again."""
    try:
        found = msgspec.json.decode((folder / _FILE).read_bytes(), type=Comparison)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.cpu == cpu else None


def measure_here(threads: int, on_round: Callable[[int, int], None] = lambda number, count: None) -> Comparison | None:
    """Compare the build of this machine with the library that would be used without it, with the demo model, and keep
    the result. None if there are not two libraries, or no demo model. Raises `NativeQueryFailed` and `MachineBusy`.
    """
    native, other = two_libraries()
    model = find_demo()
    if native is None or other is None or model is None:
        return None
    prompt, stream = compare(native.path, other.path, model, threads, on_round)
    cpu, source = this_cpu(), str(PINNED)
    found = Comparison(cpu, source, other.origin, model.stem, threads, prompt, stream, time.time())
    save(cache_folder(), found)
    return found


def two_libraries(environment: Mapping[str, str] = os.environ) -> tuple[Found | None, Found | None]:
    """The library that was built here, and the one that would be used without it."""
    searched = {name: value for name, value in environment.items() if name not in VARIABLES}
    found = list(candidates(searched))
    native = next((each for each in found if each.origin == BUILT), None)
    return native, next((each for each in found if each.origin != BUILT), None)

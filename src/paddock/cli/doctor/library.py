"""Checks of libllama: which one is used, what was built here, and how fast both are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from paddock.cli.doctor.finding import Finding
from paddock.cli.native import comparison
from paddock.cli.native.gain import build_command
from paddock.cli.native.job import State, read_state
from paddock.errors import LibraryUnusable
from paddock.fleet.process.library_trial import doubtful_library, prove_library
from paddock.fleet.process.native import NativeQueryFailed
from paddock.libraries import BUILT, Build, cache_folder, find_library, list_builds, this_cpu


def check_library(made: list[Build], state: State | None) -> Iterator[Finding]:
    """`made` are the builds in the cache, `state` is that of the last build."""
    for build in made:
        if build.problem:
            text = f"{build.folder}, which `paddock build` made, is not used: {build.problem}"
            yield Finding("warning", "library", text, f"build again: {build_command()}, or paddock build --remove")
    if state is None:
        return
    if state.is_running:
        percent = f" {state.percent} %" if state.percent is not None else ""
        yield Finding("ok", "library", f"a build is running (process {state.pid}): {state.phase}{percent}")
    elif state.phase == "failed":
        cure = "its log shows more: paddock build --check names it"
        yield Finding("warning", "library", f"the last build failed: {state.message}", cure)


def examine_trial() -> Iterator[Finding]:
    """A library that must be tried before a model is loaded with it is tried here."""
    if doubtful_library() is None:
        return
    try:
        prove_library()
    except LibraryUnusable as error:
        yield Finding("problem", "library", error.message, "use another library, then restart the server")
    else:
        text = "Paddock was not tested with this build: a tiny model was computed correctly with it"
        yield Finding("ok", "library", text)


def check_speed(measured: comparison.Comparison, origin: str) -> Finding:
    """`origin` is that of the library in use."""
    text = f"{measured}, compared with {measured.other} ({measured.model}, {measured.threads} threads)"
    if origin == BUILT and min(measured.prompt, measured.stream) < comparison.SLOWER:
        cure = "use the other library: paddock build --remove"
        return Finding("warning", "library", f"the build for this machine is slower: {text}", cure)
    if origin == BUILT or not measured.is_faster:
        return Finding("ok", "library", f"the build for this machine: {text}")
    text = f"a build for this machine, which is not used, is faster: {text}"
    return Finding("warning", "library", text, f"{build_command()}, and unset PADDOCK_LIBLLAMA if it is set")


def examine_library(threads: int, *, measure: bool) -> Iterator[Finding]:
    """Both libraries are measured once, and again with `measure`."""
    folder, cpu, found = cache_folder(), this_cpu(), find_library()
    yield from check_library(list_builds(folder, cpu), read_state(folder))
    measured = comparison.load(folder, cpu)
    native, other = comparison.two_libraries()
    if native is not None and other is not None and (measure or measured is None):
        try:
            measured = comparison.measure_here(threads, _show) or measured
        except NativeQueryFailed as error:
            text = f"the speed of {other.path} and {native.path} cannot be compared: {error}"
            yield Finding("warning", "library", text, "`paddock build --check` shows whether the library works")
        except comparison.MachineBusy as error:
            text = f"the speed of both libraries was not compared: {error}"
            yield Finding("warning", "library", text, "`paddock doctor --measure` on an idle machine")
    if measured is not None and found is not None:
        yield check_speed(measured, found.origin)


def _show(number: int, count: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if number == count else "\r"
        sys.stderr.write(f"measuring both libraries, round {number} of {count}{end}")
        sys.stderr.flush()

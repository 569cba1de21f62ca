"""`paddock build --check`: which library is used, what it does not use of this CPU, and what was measured."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import click
import msgspec

from paddock.cli.native import comparison
from paddock.cli.native.gain import INSTRUCTIONS, build_command, unused
from paddock.cli.native.job import LOG, State, read_state
from paddock.cli.native.tools import find_tools
from paddock.errors import StartupError
from paddock.fleet.process.native import Build as Native
from paddock.fleet.process.native import ask_build
from paddock.libraries import Build, Cpu, Found, cache_folder, find_library, list_builds, this_cpu

_WIDTH = 10


def print_report(*, as_json: bool) -> None:
    folder, cpu = cache_folder(), this_cpu()
    used, native = find_library(), ask_build()
    made, state = list_builds(folder, cpu), read_state(folder)
    measured = comparison.load(folder, cpu)
    missing = _missing()
    if as_json:
        click.echo(json.dumps(_as_dict(used, native, cpu, made, state, measured, missing), indent=2))
        return
    for name, text in (
        ("library", library_line(used, native)),
        ("cpu", cpu_line(cpu, native)),
        *(("build", build_line(build)) for build in made),
        *((("build", state_line(state, time.time(), str(folder / LOG))),) if state is not None else ()),
        ("gain", gain_line(measured, unused(native.features, cpu.features), build_command())),
        ("to build", missing or f"everything is here ({_compiler()})"),
    ):
        click.echo(f"{name:<{_WIDTH}}{text}")


def library_line(used: Found | None, native: Native) -> str:
    if used is None:
        return "there is none"
    if native.failure:
        return f"{used.path} ({used.origin}) cannot be used: {native.failure}"
    features = ", ".join(name for name in native.features if name in INSTRUCTIONS)
    gpus = "".join(f"; {gpu.name}" for gpu in native.gpus)
    return f"{used.path} ({used.origin}) uses {features or 'no special instructions'}{gpus}"


def cpu_line(cpu: Cpu, native: Native) -> str:
    name = cpu.model or cpu.machine
    if native.failure:
        return name
    if not cpu.features:
        return f"{name}: its instruction sets are not known"
    more = ", ".join(unused(native.features, cpu.features))
    return f"{name} also has {more}" if more else f"{name}: the library uses all of it"


def build_line(build: Build) -> str:
    identity = build.identity
    if identity is None:
        return f"{build.folder} is not used: {build.problem}"
    backends = f" for {', '.join(identity.backends)}" if identity.backends else ""
    about = f"{build.folder}: {identity.source}{backends}, {identity.compiler}"
    return f"{about}, is not used: {build.problem}" if build.problem else about


def state_line(state: State, now: float, log: str) -> str:
    minutes = max(now - state.begun_at, 0.0) / 60
    percent = f" {state.percent} %" if state.percent is not None else ""
    if state.is_running:
        return f"one is running for {minutes:.0f} minutes (process {state.pid}): {state.phase}{percent}; log: {log}"
    if state.phase == "finished":
        return "the last one finished"
    because = f": {state.message}" if state.message else ""
    return f"the last one {'failed' if state.phase == 'failed' else 'was cancelled'}{because}; log: {log}"


def gain_line(measured: comparison.Comparison | None, more: list[str], command: str) -> str:
    if measured is not None:
        return (
            f"measured here: {measured}, compared with {measured.other} ({measured.model}, {measured.threads} threads)"
        )
    if more:
        return f"not measured yet; a build would use {', '.join(more)}: `{command}` builds and measures"
    return "not measured; a build for this CPU would use the same instructions"


def _missing() -> str | None:
    """What cannot be installed by us."""
    try:
        find_tools(())
    except StartupError as error:
        return error.message
    return None


def _compiler() -> str:
    tools = find_tools(())
    from_index = f"; {' and '.join(tools.missing)} from the Python index" if tools.missing else ""
    return f"{tools.compiler}{from_index}; {os.cpu_count()} cores"


def _as_dict(
    used: Found | None,
    native: Native,
    cpu: Cpu,
    made: list[Build],
    state: State | None,
    measured: comparison.Comparison | None,
    missing: str | None,
) -> dict[str, Any]:
    library = {"path": str(used.path), "origin": used.origin, "features": native.features} if used is not None else None
    return {
        "library": library,
        "failure": native.failure or None,
        "cpu": msgspec.to_builtins(cpu),
        "unused": unused(native.features, cpu.features),
        "builds": [
            {"folder": str(each.folder), "identity": msgspec.to_builtins(each.identity), "problem": each.problem}
            for each in made
        ],
        "last_build": msgspec.to_builtins(state),
        "measured": msgspec.to_builtins(measured),
        "missing": missing,
    }

"""The command. Its modules are imported when it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paddock.cli.common import json_option
from paddock.errors import StartupError

if TYPE_CHECKING:
    from paddock.cli.native.job import State
    from paddock.libraries import Build

_TEXTS = {
    "download": "downloading",
    "unpack": "unpacking the source",
    "configure": "configuring",
    "compile": "compiling",
    "check": "checking the library",
}
_LOWER_PRIORITY = 10


@click.command("build")
@click.option("--cuda", is_flag=True, help="For NVIDIA GPUs. Needs the CUDA toolkit.")
@click.option("--vulkan", is_flag=True, help="For GPUs with Vulkan. Needs its SDK.")
@click.option("--metal", is_flag=True, help="For Apple's GPUs.")
@click.option("--rocm", is_flag=True, help="For AMD GPUs. Needs ROCm.")
@click.option("--background", is_flag=True, help="Build in the background, with lower priority.")
@click.option("--check", is_flag=True, help="Show what a build would gain here, and how far a running one is.")
@click.option("--remove", is_flag=True, help="Remove what was built.")
@click.option("--path", "print_path", is_flag=True, help="Print the folder of the library that was built.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="How many files to compile at once. [all cores]")
@click.option("--source", type=click.Path(path_type=Path), metavar="FILE", help="The source package, if it is here.")
@json_option
def command(
    background: bool, check: bool, remove: bool, print_path: bool, jobs: int | None, source: Path | None, as_json: bool,
    **backends: bool,
) -> None:  # fmt: skip
    """Compile llama.cpp for this machine, which makes Paddock faster where the installed library is a general one.

    It takes about fifteen minutes on two cores, and more for GPUs. Servers use the result when they next load a
    model. An unfinished build is never used.
    """
    if check:
        from paddock.cli.native.report import print_report

        print_report(as_json=as_json)
    elif remove:
        from paddock.cli.native.job import remove_builds
        from paddock.libraries import cache_folder

        count = remove_builds(cache_folder())
        click.echo(f"removed {count} {'build' if count == 1 else 'builds'} from {cache_folder()}")
    elif print_path:
        click.echo(_usable_build())
    else:
        chosen = tuple(name for name, is_chosen in backends.items() if is_chosen)
        (_start if background else _build)(chosen, jobs or os.cpu_count() or 1, source)


def _usable_build() -> Path:
    from paddock.libraries import usable_builds

    for folder in usable_builds():
        return folder
    raise StartupError("there is no build for this machine: `paddock build` makes one")


def _build(backends: tuple[str, ...], jobs: int, package: Path | None) -> None:
    from paddock.cli.native.checking import check_library
    from paddock.cli.native.job import LOG, Cancelled, Order, read_state, run_build
    from paddock.libraries import cache_folder, this_cpu

    begun = time.monotonic()
    order = Order(cache_folder(), backends, jobs, package)
    try:
        build = run_build(order, this_cpu(), check_library, _Progress(begun))
    except StartupError as error:
        state, log = read_state(order.folder), order.folder / LOG
        is_about_this = state is not None and state.message == error.message and log.stat().st_size
        raise StartupError(error.message + (f" (log: {log})" if is_about_this else "")) from None
    except (KeyboardInterrupt, Cancelled):
        click.echo("\ncancelled: nothing of it is used")
        sys.exit(130)
    click.echo(f"\nbuilt in {time.monotonic() - begun:.0f} s: {build.folder}")
    _measure()
    _say_what_is_used(build)


def _measure() -> None:
    from paddock.cli.native.comparison import MachineBusy, measure_here
    from paddock.control_groups import usable_cpus
    from paddock.fleet.process.native import NativeQueryFailed

    def show(number: int, count: int) -> None:
        click.echo(f"measuring both libraries with the demo model, round {number} of {count}")

    try:
        found = measure_here(usable_cpus(), show)
    except (NativeQueryFailed, MachineBusy) as error:
        click.echo(f"the speed cannot be measured: {error} (`paddock doctor --measure` tries again)")
    else:
        if found is not None:
            click.echo(f"speed, compared with the library of {found.other}: {found}")


def _say_what_is_used(build: Build) -> None:
    from paddock.libraries import find_library

    used = find_library()
    if used is None or used.path.parent != build.folder:
        where = "nothing" if used is None else f"{used.path}, named in {used.origin}"
        click.echo(f"it is not used: workers use {where}")
    else:
        click.echo("workers use it from now on; a loaded model uses it when it is loaded again")


def _start(backends: tuple[str, ...], jobs: int, package: Path | None) -> None:
    """Start a build as a process of its own. What is missing is said before."""
    from paddock.cli.native.job import LOG, is_running, other_build
    from paddock.cli.native.tools import find_tools
    from paddock.libraries import cache_folder

    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_running(folder):
        raise other_build(folder)
    find_tools(backends)
    command = [sys.executable, "-P", "-m", "paddock", "build", "--jobs", str(jobs)]
    command += [f"--{name}" for name in backends] + (["--source", str(package.absolute())] if package else [])
    os.nice(_LOWER_PRIORITY)
    with (folder / "background.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    click.echo(
        f"building in the background (process {process.pid}). `paddock build --check` shows how far it is; the log is "
        f"{folder / LOG}"
    )


class _Progress:
    """One line that changes on a terminal; elsewhere a line for each phase and for every tenth of the compiling."""

    def __init__(self, begun: float) -> None:
        self._begun, self._shown = begun, ("", -1)

    def __call__(self, state: State) -> None:
        text = _TEXTS.get(state.phase)
        if text is None:
            return
        percent, is_live = state.percent, sys.stdout.isatty()
        step = (state.phase, -1 if percent is None else percent if is_live else percent // 10)
        if step == self._shown:
            return
        self._shown = step
        line = f"{text}{'' if percent is None else f' {percent:3d} %'}  ({time.monotonic() - self._begun:.0f} s)"
        click.echo(f"\r{line:<60}" if is_live else line, nl=not is_live)

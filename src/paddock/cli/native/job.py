"""A build from the first step to the last. One runs at a time, and only a finished and checked one is visible.

Everything happens in a temporary folder, which is renamed at the end. The lock shows whether a build runs: the system
releases it however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import msgspec

from paddock.cli.native import compiling, source
from paddock.cli.native.checking import Checked
from paddock.cli.native.tools import Backend, Runner, Tools, compile_environment, find_tools, install_tools
from paddock.errors import StartupError
from paddock.libraries import IDENTITY, PINNED, Build, Cpu, Identity, Source, list_builds

Phase = Literal["download", "unpack", "configure", "compile", "check", "finished", "failed", "cancelled"]
ENDED: tuple[Phase, ...] = ("finished", "failed", "cancelled")

_LOCK, _STATE, LOG = "lock", "state.json", "build.log"
_WORK = "work-"
_ROOM = 1 << 30
# A reader of the state holds the lock for a moment.
_LOCK_TRIES, _LOCK_PAUSE = 20, 0.05


class State(msgspec.Struct, frozen=True):
    """How far the last build is, or how it ended."""

    phase: Phase
    pid: int
    begun_at: float
    backends: tuple[str, ...] = ()
    percent: int | None = None
    message: str = ""
    is_running: bool = False
    """Whether the process that wrote the rest still builds."""


class Cancelled(BaseException):
    """SIGTERM or SIGHUP."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to build."""

    folder: Path
    """The cache folder."""
    backends: tuple[Backend, ...] = ()
    jobs: int = 1
    package: Path | None = None
    """The source package, if it is here already."""
    source: Source = PINNED


def run_build(
    order: Order, cpu: Cpu, check: Callable[[Path], Checked], show: Callable[[State], None] = lambda state: None
) -> Build:
    """Build, check and publish. Raises `StartupError`; whatever happens, nothing unfinished is left."""
    order.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(order.folder), _signals():
        state = State("download", os.getpid(), time.time(), order.backends)

        def report(phase: Phase, percent: int | None = None, message: str = "") -> None:
            nonlocal state
            state = msgspec.structs.replace(state, phase=phase, percent=percent, message=message)
            _write(order.folder / _STATE, msgspec.json.encode(state))
            show(state)

        _remove_leftovers(order.folder)
        work = Path(tempfile.mkdtemp(prefix=_WORK, dir=order.folder))
        try:
            with (order.folder / LOG).open("w", encoding="utf-8") as log:
                build = _build(order, cpu, check, report, work, Runner(log))
        except StartupError as error:
            report("failed", state.percent, error.message)
            raise
        except BaseException as error:
            cancelled = isinstance(error, KeyboardInterrupt | Cancelled)
            report("cancelled" if cancelled else "failed", state.percent, "" if cancelled else repr(error))
            raise
        finally:
            source.remove(work)
        report("finished")
        return build


def _build(
    order: Order,
    cpu: Cpu,
    check: Callable[[Path], Checked],
    report: Callable[..., None],
    work: Path,
    run: Runner,
) -> Build:
    if (free := shutil.disk_usage(work).free) < _ROOM:
        raise StartupError(f"a build needs 1 GiB in {order.folder}, and {free >> 20} MiB are free")
    tools = find_tools(order.backends)
    if order.package is None or tools.missing:
        report("download")
    tools = install_tools(tools, work, run)
    package = order.package or source.download(order.source, work, run)
    report("unpack")
    source.verify(package, order.source)
    code = source.unpack(package, work)
    identity = _compile(order, cpu, code, tools, report, work, run)
    report("check")
    result = work / "result"
    compiling.collect(work / "build", result)
    checked = check(result)
    if checked.problem:
        raise StartupError(f"the compiled library does not work here and is not used: {checked.problem}")
    identity = msgspec.structs.replace(identity, built_at=time.time(), features=tuple(checked.features))
    (result / IDENTITY).write_bytes(msgspec.json.format(msgspec.json.encode(identity)))
    return _publish(order, cpu, result, identity)


def _compile(
    order: Order, cpu: Cpu, code: Path, tools: Tools, report: Callable[..., None], work: Path, run: Runner
) -> Identity:
    options = compiling.flags(order.backends)
    run = run.with_environment(compile_environment(tools.compiler, os.environ, " ".join(cpu.features)))
    report("configure")
    compiling.configure(code, work / "build", options, tools, run)
    report("compile", 0)
    compiling.compile_libraries(work / "build", tools, order.jobs, run, lambda percent: report("compile", percent))
    return Identity(order.source, order.backends, tuple(options), tools.compiler, cpu, 0.0)


def _publish(order: Order, cpu: Cpu, result: Path, identity: Identity) -> Build:
    """Make the build visible. Earlier ones that this machine would use, and those of other versions, are removed."""
    date, unique = time.strftime("%Y%m%d", time.gmtime(identity.built_at)), result.parent.name.removeprefix(_WORK)
    place = order.folder / "builds" / f"{date}-{unique}"
    place.parent.mkdir(exist_ok=True)
    result.rename(place)
    for build in list_builds(order.folder, cpu, order.source):
        is_for_other_cpu = build.identity is not None and build.identity.source == order.source and build.problem
        if build.folder != place and not is_for_other_cpu:
            source.remove(build.folder)
    return Build(place, identity, None)


def remove_builds(folder: Path) -> int:
    """Remove all builds. Returns how many there were."""
    if not folder.is_dir():
        return 0
    with _lock(folder):
        found = [path for path in (folder / "builds").glob("*") if path.is_dir()]
        for path in found:
            source.remove(path)
        return len(found)


def read_state(folder: Path) -> State | None:
    """The state of the running build, or how the last one ended. One that was killed is `cancelled`."""
    try:
        state = msgspec.json.decode((folder / _STATE).read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError):
        return None
    if is_running(folder):
        return msgspec.structs.replace(state, is_running=True)
    if state.phase not in ENDED:
        message = f"it was killed at {state.phase}"
        return msgspec.structs.replace(state, phase="cancelled", message=message)
    return state


def is_running(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def other_build(folder: Path) -> StartupError:
    """The error if a build is running."""
    state = read_state(folder)
    about = f" (process {state.pid})" if state is not None else ""
    return StartupError(f"another build is running{about}: `paddock build --check` shows how far it is")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("wb") as file:
        for tries_left in reversed(range(_LOCK_TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    raise other_build(folder) from None
                time.sleep(_LOCK_PAUSE)
        yield


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the build as Ctrl-C does: with its children and its files."""

    def cancel(_number: int, _frame: FrameType | None) -> None:
        raise Cancelled

    before = {number: signal.signal(number, cancel) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove_leftovers(folder: Path) -> None:
    """Of builds that were killed."""
    for path in folder.glob(f"{_WORK}*"):
        source.remove(path)


def _write(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)

"""`paddock service`: Paddock as a systemd service, of a user or of the machine."""

from __future__ import annotations

import contextlib
import grp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paddock.errors import StartupError

if TYPE_CHECKING:
    from paddock.cli.unit import Unit

_SYSTEM_UNITS = Path("/etc/systemd/system")
_NAME = re.compile(r"[A-Za-z0-9:_.\-]{1,200}")
# Who may use a GPU of AMD's or Intel's; NVIDIA's are everybody's.
_GPU_GROUPS = ("render", "video")


class _Service:
    """A unit by its name, and the systemd that it belongs to."""

    def __init__(self, name: str, *, system: bool) -> None:
        if not _NAME.fullmatch(name):
            raise StartupError(f"{name!r} cannot be a service's name: letters, digits and :_.- are allowed")
        self.name = name.removesuffix(".service")
        self._scope = () if system else ("--user",)
        user_units = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        self.file = (_SYSTEM_UNITS if system else user_units) / f"{self.name}.service"

    def control(self, *words: str) -> str:
        """How a person would ask systemd for it."""
        return " ".join(("systemctl", *self._scope, *words))

    def journal(self) -> str:
        return " ".join(("journalctl", *self._scope, "-u", self.name, "-f"))

    def ask(self, *words: str) -> int:
        """Ask systemd; what it says is seen."""
        return subprocess.run([_systemctl(), *self._scope, *words], check=False).returncode

    def must(self, *words: str) -> None:
        status = self.ask(*words)
        if status != 0:
            raise StartupError(f"{self.control(*words)} failed with status {status}; {self.file} stays as it is")

    @property
    def is_ours(self) -> bool:
        from paddock.cli.unit import MARK

        try:
            return self.file.read_text("utf-8").startswith(MARK)
        except OSError:
            return False


@click.group("service", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def command() -> None:
    """Run Paddock as a systemd service: of yours, or with --system of the machine."""


_NAMED = click.option("--name", default="paddock", metavar="NAME", help="The service's name. [paddock]")
_SYSTEM = click.option("--system", is_flag=True, help="A service of the machine (wants root), not of this user.")


@command.command("install")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Configuration file (JSON).")
@_NAMED
@_SYSTEM
@click.option("--account", metavar="USER", help="Who runs a system service. [a user that systemd makes up for it]")
@click.option("--print", "only_print", is_flag=True, help="Show the unit and change nothing.")
def install(config: Path | None, name: str, system: bool, account: str | None, only_print: bool) -> None:
    """Write the unit, start it, and have it started with the machine or at login."""
    try:
        service = _Service(name, system=system)
        if account is not None and not system:
            raise StartupError("--account is for a service of the machine: with --system")
        unit = _unit(config, system=system, account=account)
        if only_print:
            click.echo(unit.text(), nl=False)
            return
        _install(service, unit)
    except (StartupError, OSError) as error:
        _fail(error)
    click.echo(f"{service.name} is running, by {service.file}")
    click.echo(f"  its state  {service.control('status', service.name)}")
    click.echo(f"  its log    {service.journal()}")
    if not system:
        click.echo("  to have it run while you are not logged in: loginctl enable-linger")


@command.command("uninstall")
@_NAMED
@_SYSTEM
def uninstall(name: str, system: bool) -> None:
    """Stop the service and remove its unit. Settings and models stay."""
    try:
        service = _Service(name, system=system)
        if not service.is_ours:
            raise StartupError(f"{service.file} is not a unit of ours, or not there: nothing was changed")
        service.must("disable", "--now", service.name)
        service.file.unlink()
        service.must("daemon-reload")
    except (StartupError, OSError) as error:
        _fail(error)
    click.echo(f"{service.name} is stopped, and {service.file} removed")


@command.command("status")
@_NAMED
@_SYSTEM
def status(name: str, system: bool) -> None:
    """Show what systemd knows of the service; the exit status is systemctl's."""
    try:
        service = _Service(name, system=system)
        sys.exit(service.ask("--no-pager", "status", service.name))
    except StartupError as error:
        _fail(error)


def _install(service: _Service, unit: Unit) -> None:
    known = service.file.exists()
    if known and not service.is_ours:
        raise StartupError(f"{service.file} is not a unit of ours: remove it, or choose another --name")
    _systemctl()  # before anything is written
    service.file.parent.mkdir(parents=True, exist_ok=True)
    service.file.write_text(unit.text(), "utf-8")
    service.must("daemon-reload")
    service.must("enable", "--now", service.name)
    if known:
        service.must("restart", service.name)


def _unit(config: Path | None, *, system: bool, account: str | None) -> Unit:
    """Made of settings that are known to be good: what could not start is not installed."""
    from paddock.cli.unit import Unit
    from paddock.config import load_settings
    from paddock.fleet import open_catalogue

    given = config or (Path(named).expanduser() if (named := os.environ.get("PADDOCK_CONFIG")) else None)
    file = given.absolute() if given is not None else None
    folder = file.parent if file is not None else Path.home()
    with contextlib.chdir(folder):  # as the service will be
        settings = load_settings(file=file)
        open_catalogue(settings.model_manager)
        slots, models, audit = (
            path.absolute() if path is not None else None
            for path in (
                settings.server.slot_save_path,
                settings.model_manager.models_directory,
                settings.server.audit_log and settings.server.audit_log.parent,
            )
        )
    python = current_python(Path(sys.executable).absolute())
    needed = [path for path in (python, file, models, slots, audit) if path is not None]
    for path in needed:
        if not str(path).isprintable():
            raise StartupError(f"{str(path)!r} cannot be written into a unit")
    if system and account is None:
        _require_open(*needed)
    return Unit(
        command=(str(python), "-m", "paddock", "serve", *(("--config", str(file)) if file is not None else ())),
        folder=folder if file is not None or not system else None,
        system=system,
        account=account,
        groups=tuple(name for name in _GPU_GROUPS if _is_group(name)),
        writable=tuple(path for path in (slots, audit) if path is not None),
        stop_timeout=settings.server.stop_timeout,
    )


def current_python(python: Path) -> Path:
    """Of a version that `make install` made and its `current` link means, the path through that link: the unit then
    runs whatever version is current.
    """
    place = python.parent.parent
    through = place.parent.parent / "current" / "bin" / python.name
    if place.parent.name == "versions" and through.parent.parent.resolve() == place.resolve():
        return through
    return python


def _require_open(*paths: Path) -> None:
    """A user that is made up owns nothing, so everybody must be able to get at these."""
    for path in paths:
        for part in (path, *path.parents, path.resolve(), *path.resolve().parents):
            if part.exists() and not part.stat().st_mode & (0o001 if part.is_dir() else 0o004):
                raise StartupError(
                    f"{part} is closed to the user that systemd makes up for the service: open it, or name a user with "
                    "--account (a key need not stand in the configuration: systemd reads /etc/paddock/environment)"
                )


def _systemctl() -> str:
    found = shutil.which("systemctl")
    if found is None:
        raise StartupError("there is no systemctl here: --print shows the unit, for where there is one")
    return found


def _is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _fail(error: StartupError | OSError) -> None:
    click.echo(f"paddock: {error.message if isinstance(error, StartupError) else error}", err=True)
    sys.exit(1)

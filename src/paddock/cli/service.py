"""`paddock service`: Paddock as a systemd service of the user or of the system."""

from __future__ import annotations

import contextlib
import grp
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paddock.cli.common import config_file, config_option
from paddock.errors import StartupError
from paddock.hosts import is_socket_path

if TYPE_CHECKING:
    from paddock.cli.unit import Unit

_SYSTEM_UNITS = Path("/etc/systemd/system")
_NAME = re.compile(r"[A-Za-z0-9:_.\-]{1,200}")
# Groups that may use GPUs of AMD and Intel. NVIDIA's need no group.
_GPU_GROUPS = ("render", "video")


class _Service:
    """A unit by name, of the user's or the system's systemd."""

    def __init__(self, name: str, *, system: bool) -> None:
        if not _NAME.fullmatch(name):
            raise StartupError(f"{name!r} is not a valid service name: use letters, digits and :_.-")
        self.name = name.removesuffix(".service")
        self._scope = () if system else ("--user",)
        user_units = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        self.file = (_SYSTEM_UNITS if system else user_units) / f"{self.name}.service"

    def control(self, *words: str) -> str:
        """The systemctl command for a person."""
        return " ".join(("systemctl", *self._scope, *words))

    def journal(self) -> str:
        return " ".join(("journalctl", *self._scope, "-u", self.name, "-f"))

    def run(self, *words: str) -> int:
        """Run systemctl, with its output on the terminal."""
        return subprocess.run([_systemctl(), *self._scope, *words], check=False).returncode

    def run_checked(self, *words: str) -> None:
        status = self.run(*words)
        if status != 0:
            raise StartupError(f"{self.control(*words)} failed with status {status}; {self.file} is unchanged")

    @property
    def is_ours(self) -> bool:
        from paddock.cli.unit import MARK

        try:
            return self.file.read_text("utf-8").startswith(MARK)
        except OSError:
            return False


@click.group("service")
def command() -> None:
    """Run Paddock as a systemd service of this user, or of the system with --system."""


_NAMED = click.option("--name", default="paddock", metavar="NAME", help="The name of the service. [paddock]")
_SYSTEM = click.option("--system", is_flag=True, help="A service of the system (needs root), not of this user.")


@command.command("install")
@config_option
@_NAMED
@_SYSTEM
@click.option("--account", metavar="USER", help="The user of a system service. [a dynamic user of systemd]")
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
def install(config: Path | None, name: str, system: bool, account: str | None, only_print: bool) -> None:
    """Write the unit, start it, and enable it at boot or login."""
    service = _Service(name, system=system)
    if account is not None and not system:
        raise StartupError("--account needs --system")
    unit = _unit(config, system=system, account=account)
    if only_print:
        click.echo(unit.text(), nl=False)
        return
    with _os_errors():
        _install(service, unit)
    click.echo(f"{service.name} is running; its unit is {service.file}")
    click.echo(f"  status  {service.control('status', service.name)}")
    click.echo(f"  log     {service.journal()}")
    if not system:
        click.echo("  to run it while you are not logged in: loginctl enable-linger")


@command.command("uninstall")
@_NAMED
@_SYSTEM
def uninstall(name: str, system: bool) -> None:
    """Stop the service and remove its unit. Settings and models are kept."""
    service = _Service(name, system=system)
    if not service.is_ours:
        raise StartupError(
            f"{service.file} does not exist, or was not written by `paddock service install`: nothing was changed"
        )
    service.run_checked("disable", "--now", service.name)
    with _os_errors():
        service.file.unlink()
    service.run_checked("daemon-reload")
    click.echo(f"{service.name} is stopped, and {service.file} is removed")


@command.command("status")
@_NAMED
@_SYSTEM
def status(name: str, system: bool) -> None:
    """Show the status of the service. The exit status is that of systemctl."""
    service = _Service(name, system=system)
    sys.exit(service.run("--no-pager", "status", service.name))


def _install(service: _Service, unit: Unit) -> None:
    existed = service.file.exists()
    if existed and not service.is_ours:
        raise StartupError(
            f"{service.file} was not written by `paddock service install`: remove it, or choose another --name"
        )
    _systemctl()  # fails before anything is written
    service.file.parent.mkdir(parents=True, exist_ok=True)
    service.file.write_text(unit.text(), "utf-8")
    service.run_checked("daemon-reload")
    service.run_checked("enable", "--now", service.name)
    if existed:
        service.run_checked("restart", service.name)


def _unit(config: Path | None, *, system: bool, account: str | None) -> Unit:
    """Validates the settings first: a service that cannot start is not installed."""
    from paddock.cli.unit import Unit
    from paddock.config import load_settings
    from paddock.fleet import open_catalogue

    given = config_file(config)
    file = given.absolute() if given is not None else None
    folder = file.parent if file is not None else Path.home()
    with contextlib.chdir(folder):  # the working directory of the service
        settings = load_settings(file=file)
        open_catalogue(settings.model_manager)
        server, models = settings.server, settings.model_manager.models_directory
        files = [file.parent for file in (server.audit_log, server.log_file) if file is not None]
        sockets = [Path(host).parent for host in server.hosts if is_socket_path(host)]
        folders = (server.slot_save_path, *settings.model_manager.cache_folders)
        written = [path.absolute() for path in (*folders, *files, *sockets) if path is not None]
        writable = list(dict.fromkeys(written))
        readable = [path.absolute() for path in (file, models) if path is not None]
    python = current_python(Path(sys.executable).absolute())
    needed = [python, *readable, *writable]
    for path in needed:
        if not str(path).isprintable():
            raise StartupError(f"{str(path)!r} cannot be written into a unit: it has unprintable characters")
    if system and account is None:
        _require_readable(*needed)
    return Unit(
        command=(str(python), "-m", "paddock", "serve", *(("--config", str(file)) if file is not None else ())),
        folder=folder if file is not None or not system else None,
        system=system,
        account=account,
        groups=tuple(name for name in _GPU_GROUPS if _is_group(name)),
        writable=tuple(writable),
        stop_timeout=settings.server.stop_timeout,
    )


def current_python(python: Path) -> Path:
    """The path through the `current` link of `make install`, if it points to this version. The unit then always runs
    the current version.
    """
    place = python.parent.parent
    through = place.parent.parent / "current" / "bin" / python.name
    if place.parent.name == "versions" and through.parent.parent.resolve() == place.resolve():
        return through
    return python


def _require_readable(*paths: Path) -> None:
    """A dynamic user owns no files, so these paths must be readable by everybody."""
    for path in paths:
        for part in (path, *path.parents, path.resolve(), *path.resolve().parents):
            if part.exists() and not part.stat().st_mode & (0o001 if part.is_dir() else 0o004):
                raise StartupError(
                    f"the dynamic user of the service cannot read {part}: change its permissions, or set a user with "
                    "--account (keys can be set in /etc/paddock/environment instead of the configuration)"
                )


def _systemctl() -> str:
    found = shutil.which("systemctl")
    if found is None:
        raise StartupError("systemctl was not found: --print shows the unit, to install it elsewhere")
    return found


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartupError(str(error)) from None


def _is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True

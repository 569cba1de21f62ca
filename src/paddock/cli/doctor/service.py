"""How is the service, where it runs as one?"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping

from paddock.cli.doctor.finding import Finding

_ABOUT = "service"
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "NRestarts", "Result", "UnitFileState")
_CAUSES = {
    "oom-kill": "the kernel ended it for want of memory",
    "watchdog": "it gave no sign of life",
    "start-limit-hit": "it failed too often, one start after another",
    "timeout": "it did not start or stop in time",
    "exit-code": "it ended with an error",
    "signal": "it was killed",
    "core-dump": "it crashed",
}


def check_service(name: str, said: Mapping[str, str], *, system: bool) -> Finding | None:
    """`said` is what `systemctl show` knows of the unit; None where there is no such unit."""
    if said.get("LoadState", "not-found") in ("not-found", "masked"):
        return None
    scope = "" if system else "--user "
    log = f"journalctl {scope}-u {name} -n 50"
    state, count = said.get("ActiveState", ""), said.get("NRestarts", "")
    restarts = int(count) if count.isdigit() else 0
    cause = _CAUSES.get(said.get("Result", ""), "")
    because = f": {cause}" if cause else ""
    if state == "failed":
        return Finding(
            "problem",
            _ABOUT,
            f"{name} has failed{because}",
            f"its log tells why: {log}; then systemctl {scope}restart {name}",
        )
    if state in ("activating", "deactivating") and restarts:
        return Finding(
            "problem",
            _ABOUT,
            f"{name} keeps restarting ({restarts} times){because}",
            f"its log tells why: {log}; memory, the configuration and the model are the usual causes",
        )
    if restarts:
        return Finding("warning", _ABOUT, f"{name} is {state}, and was restarted {restarts} times", f"see {log}")
    if state != "active":
        return Finding("warning", _ABOUT, f"{name} is {state}", f"systemctl {scope}start {name}")
    if said.get("UnitFileState") == "disabled":
        return Finding(
            "warning",
            _ABOUT,
            f"{name} runs, but will not after the next start of the machine",
            f"systemctl {scope}enable {name}",
        )
    return Finding("ok", _ABOUT, f"{name} is running")


def look_at_service(name: str) -> Iterator[Finding]:
    found = [
        finding
        for system in (False, True)
        if (finding := check_service(name, _show(name, system=system), system=system))
    ]
    yield from found or [Finding("ok", _ABOUT, f"{name} is not installed as a service", "paddock service install")]


def _show(name: str, *, system: bool) -> dict[str, str]:
    """Nothing where there is no systemd, or none that runs."""
    program = shutil.which("systemctl")
    if program is None:
        return {}
    command = [
        program,
        *([] if system else ["--user"]),
        "show",
        f"--property={','.join(_PROPERTIES)}",
        f"{name}.service",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    if done.returncode != 0:
        return {}
    return {key: value for key, _, value in (line.partition("=") for line in done.stdout.splitlines())}

"""The text of the systemd unit. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MARK = "# Written by `paddock service install`."
"""The first line of a unit that this command wrote."""


@dataclass(frozen=True, slots=True)
class Unit:
    command: tuple[str, ...]
    """The command, with absolute paths."""
    folder: Path | None = None
    """The working directory, for relative paths in the settings and for the `.env` file."""
    system: bool = False
    """A service of the system, not of the user who installs it."""
    account: str | None = None
    """The user of a system service. None: a dynamic user."""
    groups: tuple[str, ...] = field(default=())
    """More groups of that user, which may use the GPU."""
    writable: tuple[Path, ...] = field(default=())
    """Folders that a system service may write to besides its own."""
    stop_timeout: int = 150

    def text(self) -> str:
        sections = (self._unit(), self._service(), self._install())
        return "\n\n".join((MARK, *("\n".join(section) for section in sections)))

    def _unit(self) -> list[str]:
        return [
            "[Unit]",
            "Description=Paddock, a server for GGUF models",
            *(["Wants=network-online.target", "After=network-online.target"] if self.system else []),
            "# A service that cannot start is not restarted forever.",
            "StartLimitIntervalSec=300",
            "StartLimitBurst=5",
        ]

    def _service(self) -> list[str]:
        return [
            "[Service]",
            "Type=notify",
            f"ExecStart={' '.join(_quoted(word).replace('$', '$$') for word in self.command)}",
            "ExecReload=kill -HUP $MAINPID",
            *([f"WorkingDirectory={_literal(str(self.folder))}"] if self.folder else []),
            "EnvironmentFile=-%E/paddock/environment",
            "# Without a notification the event loop hangs. The server itself watches its workers.",
            "WatchdogSec=60",
            "Restart=on-failure",
            "RestartSec=5",
            "# Only the server gets SIGTERM. It finishes running requests and stops its workers.",
            "KillMode=mixed",
            f"TimeoutStopSec={self.stop_timeout}",
            "# If the kernel kills a worker for its memory, the server loads the model again.",
            "OOMPolicy=continue",
            "# memory_limit limits the models; this limit protects the machine in any case.",
            "MemoryMax=90%",
            "LimitNOFILE=65536",
            *self._user(),
            *_HARDENING,
        ]

    def _user(self) -> list[str]:
        if not self.system:
            return []
        return [
            f"User={self.account}" if self.account else "DynamicUser=yes",
            *([f"SupplementaryGroups={' '.join(self.groups)}"] if self.groups else []),
            "StateDirectory=paddock",
            "CacheDirectory=paddock",
            "Environment=HOME=%S/paddock XDG_CACHE_HOME=%C",
            *([f"ReadWritePaths={' '.join(_quoted(str(path)) for path in self.writable)}"] if self.writable else []),
            "# CUDA uses this helper to create its devices; the service itself may not run it.",
            "ExecStartPre=+-/usr/bin/nvidia-modprobe -c0 -u",
            *_SYSTEM_HARDENING,
        ]

    def _install(self) -> list[str]:
        return ["[Install]", f"WantedBy={'multi-user' if self.system else 'default'}.target", ""]


# Not here, because GPUs would not work: PrivateDevices and ProtectClock (they hide devices), MemoryDenyWriteExecute
# (drivers compile code), ProtectKernelTunables (drivers write below /proc).
_HARDENING = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictRealtime=yes",
    "SystemCallArchitectures=native",
    "# The system calls of services, without those of root, and with those of the workers' sandbox.",
    "SystemCallFilter=@system-service seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
    "SystemCallFilter=~@privileged",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)
# These need namespaces, which the systemd of a user may not create on every machine.
_SYSTEM_HARDENING = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectProc=invisible",
    "PrivateMounts=yes",
    "CapabilityBoundingSet=",
)


def _quoted(word: str) -> str:
    """One quoted word of a list."""
    return '"' + _literal(word).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(text: str) -> str:
    """Escapes the specifiers of systemd."""
    return text.replace("%", "%%")

"""The systemd unit that serves Paddock, as text. Pure: nothing is written or asked here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MARK = "# Written by `paddock service install`."
"""How a unit of ours is known from somebody else's."""


@dataclass(frozen=True, slots=True)
class Unit:
    command: tuple[str, ...]
    """What is run, with absolute paths."""
    folder: Path | None = None
    """Where it runs: paths in the settings are meant from here, and a `.env` file is read."""
    system: bool = False
    """For the machine, and not for the user who installs it."""
    account: str | None = None
    """Who runs a system service; systemd makes up a user for it unless given."""
    groups: tuple[str, ...] = field(default=())
    """Further groups of that user: who may use the GPU."""
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
            "# One that cannot start is not tried for ever.",
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
            "# Silence means that the event loop stands still; workers are watched by the server itself.",
            "WatchdogSec=60",
            "Restart=on-failure",
            "RestartSec=5",
            "# The server alone is told to stop, so that answers under way are finished; it ends its workers.",
            "KillMode=mixed",
            f"TimeoutStopSec={self.stop_timeout}",
            "# A model that the kernel kills for its memory is loaded again; the others go on.",
            "OOMPolicy=continue",
            "# Models are bounded by memory_limit; this keeps the machine alive whatever happens.",
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
            "# CUDA asks this helper for its devices, which the service below may not do itself.",
            "ExecStartPre=+-/usr/bin/nvidia-modprobe -c0 -u",
            *_SYSTEM_HARDENING,
        ]

    def _install(self) -> list[str]:
        return ["[Install]", f"WantedBy={'multi-user' if self.system else 'default'}.target", ""]


# What no server of models needs. Not here, because GPUs would not work: PrivateDevices, and ProtectClock, which closes
# all devices but the clock; MemoryDenyWriteExecute (drivers compile); ProtectKernelTunables (they write below /proc).
_HARDENING = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictRealtime=yes",
    "SystemCallArchitectures=native",
    "# What services need, less what only root may; and what workers confine themselves with.",
    "SystemCallFilter=@system-service seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
    "SystemCallFilter=~@privileged",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)
# These take namespaces, which a user's own systemd may not make everywhere.
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
    """One word of a list, whatever is in it."""
    return '"' + _literal(word).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(text: str) -> str:
    """With nothing in it that systemd would put something else in the place of."""
    return text.replace("%", "%%")

"""What keeps workers from doing what they never have to?"""

from __future__ import annotations

from paddock.cli.doctor.finding import Finding
from paddock.types import SandboxMode, SandboxState

_ABOUT = "sandbox"


def check_sandbox(mode: SandboxMode, state: SandboxState) -> Finding:
    """`state` is what this machine can do, `mode` what the settings ask for."""
    active = ", ".join(state.active).replace("landlock", f"landlock (version {state.landlock_abi})")
    if mode == "off":
        return Finding(
            "warning",
            _ABOUT,
            "model_manager.sandbox is off: a model's file that takes over a worker has the server's rights",
            f"remove the setting; this machine supports {active or 'none of it'}",
        )
    if not state.missing:
        return Finding("ok", _ABOUT, f"workers are confined by {active}")
    missing = "; ".join(state.missing)
    if mode == "required":
        return Finding(
            "problem",
            _ABOUT,
            f"model_manager.sandbox is required, so no model can be loaded: {missing}",
            "set it to auto, or use a kernel that supports it (Landlock: Linux 5.13 or later)",
        )
    return Finding(
        "warning",
        _ABOUT,
        f"workers are confined by {active or 'nothing'}; missing: {missing}",
        "use a kernel with Landlock (Linux 5.13 or later, `landlock` in its lsm= list), or a container that allows it",
    )

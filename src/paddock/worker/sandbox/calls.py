"""The numbers of system calls on the two supported architectures."""

from __future__ import annotations

from dataclasses import dataclass

# A call without an entry does not exist on that architecture.
# Calls that were added since 2019 have the same numbers on both.
_COMMON = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "fchmodat2": 452,
    "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip
_X86_64 = _COMMON | {
    "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "clone": 56, "fork": 57, "vfork": 58,
    "execve": 59, "kill": 62, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101,
    "syslog": 103, "rt_sigqueueinfo": 129, "mknod": 133, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159,
    "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
    "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
    "lremovexattr": 198, "fremovexattr": 199, "tkill": 200, "lookup_dcookie": 212, "clock_settime": 227,
    "tgkill": 234, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "mknodat": 259,
    "fchownat": 260, "fchmodat": 268, "unshare": 272, "accept4": 288, "rt_tgsigqueueinfo": 297,
    "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320,
    "bpf": 321, "execveat": 322, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = _COMMON | {
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "lookup_dcookie": 18, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "fchmod": 52,
    "fchmodat": 53, "fchownat": 54, "fchown": 55, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104,
    "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "kill": 129,
    "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "reboot": 142, "sethostname": 161, "setdomainname": 162,
    "settimeofday": 170, "adjtimex": 171, "socket": 198, "bind": 200, "listen": 201, "accept": 202, "connect": 203,
    "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "execve": 221, "swapon": 224, "swapoff": 225,
    "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242, "fanotify_init": 262, "open_by_handle_at": 265,
    "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
    "finit_module": 273, "bpf": 280, "execveat": 281, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
LAST_KNOWN = 469
"""Higher numbers (also x32 calls, from 2**30 on) are refused, because they may do the same as a refused call."""


@dataclass(frozen=True, slots=True)
class Machine:
    audit: int
    """The kernel's `AUDIT_ARCH_*`. A filter must compare it, because numbers differ between architectures."""
    seccomp: int
    """The number of seccomp(2)."""
    numbers: dict[str, int]


MACHINES = {
    "x86_64": Machine(0xC000003E, 317, _X86_64),
    "aarch64": Machine(0xC00000B7, 277, _AARCH64),
}

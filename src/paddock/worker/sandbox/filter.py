"""The seccomp filter: which system calls a worker may make. Pure; `seccomp.py` installs it."""

from __future__ import annotations

import errno

from paddock.worker.sandbox.bpf import (
    JUMP_EQUAL,
    JUMP_GREATER,
    JUMP_SET,
    LOAD,
    RETURN,
    Instruction,
    Jump,
    Label,
    Line,
    assemble,
)
from paddock.worker.sandbox.calls import LAST_KNOWN, Machine

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""`SECCOMP_RET_ALLOW`, `…_ERRNO` and `…_KILL_PROCESS`."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's `seccomp_data`. Both machines are little-endian: the lower half of an argument is first."""
AF_UNIX = 1
CLONE_THREAD = 0x00010000

REFUSED = (
    # network, sockets of other services
    "connect",
    # other programs, other processes
    "execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise",
    "kcmp", "pidfd_getfd", "pidfd_send_signal", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    # permissions of files, which Landlock does not cover
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "mknod", "mknodat",
    "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr", "open_by_handle_at",
    # file systems and namespaces
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "quotactl", "quotactl_fd", "swapon", "swapoff", "unshare", "setns",
    # kernel
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl",
    "add_key", "request_key", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load",
    "reboot", "syslog", "acct", "fanotify_init", "lookup_dcookie", "iopl", "ioperm", "modify_ldt", "settimeofday",
    "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname",
)  # fmt: skip
"""Refused with any arguments."""
SOCKETS = ("socket", "bind", "listen", "accept", "accept4")
"""With a GPU, AF_UNIX sockets are allowed: the CUDA driver uses one to pass descriptors."""
CLIENT = ("socket", "connect")
"""Allowed for a worker that uses RPC servers."""
OWN = ("kill", "tgkill")
"""Allowed only for this process, as abort() needs them."""


def program(machine: Machine, *, pid: int, gpu: bool, network: bool = False) -> list[Instruction]:
    """The filter that the kernel runs for each system call. Refused calls fail with EPERM. `clone3`, whose flags a
    filter cannot read, and calls newer than this table fail with ENOSYS, so that programs use an older call.
    """
    numbers = machine.numbers
    allowed = CLIENT if network else ()
    refused = [name for name in (*REFUSED, *(() if gpu else SOCKETS)) if name not in allowed]
    lines: list[Line] = [
        Instruction(LOAD, ARCHITECTURE),
        Jump(JUMP_EQUAL, machine.audit, otherwise="kill"),
        Instruction(LOAD, NUMBER),
        Jump(JUMP_GREATER, LAST_KNOWN, then="absent"),
        Jump(JUMP_EQUAL, numbers["clone3"], then="absent"),
        Jump(JUMP_EQUAL, numbers["clone"], then="clone"),
        *(Jump(JUMP_EQUAL, numbers[name], then="signal") for name in OWN),
        *([Jump(JUMP_EQUAL, numbers["socket"], then="socket")] if gpu and not network else []),
        *(Jump(JUMP_EQUAL, number, then="refuse") for number in sorted(numbers[n] for n in refused if n in numbers)),
        Instruction(RETURN, ALLOW),
        Label("clone"),
        Instruction(LOAD, FIRST_ARGUMENT),
        Jump(JUMP_SET, CLONE_THREAD, then="allow", otherwise="refuse"),
        Label("socket"),
        Instruction(LOAD, FIRST_ARGUMENT),
        Jump(JUMP_EQUAL, AF_UNIX, then="allow", otherwise="refuse"),
        Label("signal"),
        Instruction(LOAD, FIRST_ARGUMENT),
        Jump(JUMP_EQUAL, pid, then="allow", otherwise="refuse"),
        Label("allow"),
        Instruction(RETURN, ALLOW),
        Label("refuse"),
        Instruction(RETURN, ERRNO | errno.EPERM),
        Label("absent"),
        Instruction(RETURN, ERRNO | errno.ENOSYS),
        Label("kill"),
        Instruction(RETURN, KILL),
    ]
    return assemble(lines)

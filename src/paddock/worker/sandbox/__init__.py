"""The sandbox of a worker process: no network, no other programs, and only the files that it needs.

Native code reads model files and trusts them. If a malicious file takes over that code, these limits remain:
- `no_new_privs`: no program can give it more privileges.
- Landlock (`landlock.py`; `paths.py` has the allowed paths): files, TCP ports, signals and abstract sockets.
- seccomp (`seccomp.py`, the program in `filter.py` and `bpf.py`): no sockets, no `exec`, no new processes.

Call `confine_files` first, while the process has one thread, because Landlock applies to the calling thread and the
threads that it starts later. Call `confine_calls` after the libraries are loaded. It applies to all threads.
"""

from paddock.worker.sandbox.confine import confine_calls, confine_files

__all__ = ["confine_calls", "confine_files"]

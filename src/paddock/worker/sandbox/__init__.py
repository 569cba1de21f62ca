"""Takes away from a worker process what it never needs: the network, other programs, and other people's files.

A model's weights are read by native code that trusts them. Should a file take that code over, this is what it meets:
- `no_new_privs`: no program gives it more rights than it has.
- Landlock (`landlock.py`, what may be opened in `paths.py`): files, TCP ports, signals and abstract sockets.
- seccomp (`seccomp.py`, the program in `filter.py` and `bpf.py`): no sockets, no `exec`, no new processes.

`confine_files` comes first, on the only thread there is, because Landlock holds for the calling thread and those that
it starts. `confine_calls` comes when the libraries are loaded, from any thread, and holds for all of them.
"""

from paddock.worker.sandbox.confine import confine_calls, confine_files

__all__ = ["confine_calls", "confine_files"]

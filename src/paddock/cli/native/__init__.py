"""Compiles llama.cpp for this machine, for `paddock build` and `paddock doctor`.

`source.py` fetches the pinned source, `tools.py` finds what compiles it, `compiling.py` runs CMake, `checking.py` tries
the result, and `job.py` runs these steps under a lock. `comparison.py` measures two libraries, `gain.py` says what a
build would use of this CPU, and `report.py` prints `paddock build --check`.
"""

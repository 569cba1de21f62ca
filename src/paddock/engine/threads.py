"""The CPUs and the priority of the threads that compute a model.

ggml applies them to each thread at the start of each graph, also to the threads of OpenMP, if the context has a thread
pool. A thread that computes alone gets them here.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import ThreadPoolParams
from paddock.types import EngineOptions

_CPU = 0
_NORMAL = 0
_LOW_NICE = 5
# ggml's priorities as priorities of the scheduler's real-time policy; 0: the policy for batch jobs.
_REAL_TIME = {-1: 0, 1: 40, 2: 80, 3: 90}


def prepare_thread(options: EngineOptions) -> None:
    """Set the CPUs and the priority of this thread. The threads that it starts later inherit them."""
    if cpus := {*options.cpus, *options.cpus_batch}:
        os.sched_setaffinity(0, cpus)
    if options.prio < _NORMAL:
        os.setpriority(os.PRIO_PROCESS, 0, _LOW_NICE)


def attach_threads(context: Any, options: EngineOptions) -> None:
    """Give the context thread pools, if the options need them. They live as long as the process."""
    if not (options.cpus or options.cpus_batch or options.prio or options.prio_batch or options.poll is not None):
        return
    generating, batch = pool_params(options), pool_params(options, batch=True)
    for params in (generating, batch):
        if not _is_permitted(params.prio):
            sys.stderr.write(
                f"<4>prio {params.prio} is not used: this process may not raise the priority of its threads "
                "(it needs CAP_SYS_NICE)\n"
            )
            params.prio = _NORMAL
    new = _new_pool()
    if new is None:
        sys.stderr.write("<4>cpu_mask, prio and poll are not used: this build of llama.cpp has no thread pools\n")
        return
    same = bytes(generating) == bytes(batch)
    first = ctypes.c_void_p(new(ctypes.byref(generating)))
    second = first if same else ctypes.c_void_p(new(ctypes.byref(batch)))
    lib.llama_attach_threadpool(ctypes.cast(context, ctypes.c_void_p), first, second)


def pool_params(options: EngineOptions, *, batch: bool = False) -> ThreadPoolParams:
    """The threads for single tokens, or those for prompts. libllama needs a pool of exactly as many threads."""
    params = ThreadPoolParams()
    lib.ggml_threadpool_params_init(
        ctypes.byref(params), (options.n_threads_batch if batch else None) or options.n_threads
    )
    for cpu in options.cpus_batch if batch else options.cpus:
        params.cpumask[cpu] = True
    params.strict_cpu = options.cpu_strict_batch if batch else options.cpu_strict
    params.prio = options.prio_batch if batch else options.prio
    if options.poll is not None:
        params.poll = options.poll
    return params


def _is_permitted(prio: int) -> bool:
    """Ggml would print a line for each thread of each step if it failed."""
    if prio == _NORMAL:
        return True
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    policy = os.SCHED_FIFO if _REAL_TIME[prio] else os.SCHED_BATCH
    try:
        os.sched_setscheduler(0, policy, os.sched_param(_REAL_TIME[prio]))
        os.sched_setscheduler(0, *before)
    except PermissionError:
        return False
    return True


def _new_pool() -> Any:
    """Ggml's function, from the CPU backend, which may be a library of its own; None if it has none."""
    device = ctypes.c_void_p(lib.ggml_backend_dev_by_type(_CPU))
    registry = ctypes.c_void_p(lib.ggml_backend_dev_backend_reg(device))
    address = lib.ggml_backend_reg_get_proc_address(registry, b"ggml_threadpool_new")
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address) if address else None

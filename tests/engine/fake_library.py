"""Small C libraries that look like libllama to the binding: the source is made from the binding's own tables, so that
one thing at a time can differ.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from paddock.engine.libllama import layout
from paddock.engine.libllama.functions import REQUIRED
from paddock.engine.libllama.structs import Batch, ContextParams, ModelParams, ThreadPoolParams
from paddock.libraries import Found

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

_C_TYPES = {
    ctypes.c_bool: "bool", ctypes.c_float: "float", ctypes.c_int: "int", ctypes.c_uint32: "unsigned",
    ctypes.c_size_t: "size_t", ctypes.c_void_p: "void *",
}  # fmt: skip
_STRUCTS: Mapping[str, tuple[type[ctypes.Structure], Mapping[str, Any]]] = {
    "model": (ModelParams, layout.MODEL),
    "context": (ContextParams, layout.CONTEXT),
    "threads": (ThreadPoolParams, layout.THREADS),
    "batch": (Batch, layout.EMPTY_BATCH),
}

ALWAYS_ZERO = {
    "llama_model_load_from_file": "void *llama_model_load_from_file(void) { static int it; return &it; }",
    "llama_model_get_vocab": "void *llama_model_get_vocab(void) { static int it; return &it; }",
    "llama_init_from_model": "void *llama_init_from_model(void) { static int it; return &it; }",
    "llama_get_memory": "void *llama_get_memory(void) { static int it; return &it; }",
    "llama_vocab_n_tokens": "int llama_vocab_n_tokens(void) { return 256; }",
    "llama_n_seq_max": "unsigned llama_n_seq_max(void) { return 2; }",
    "llama_n_ctx": "unsigned llama_n_ctx(void) { return 512; }",
    "llama_n_ctx_seq": "unsigned llama_n_ctx_seq(void) { return 256; }",
    "llama_decode": "int llama_decode(void) { return 0; }",
    "llama_get_logits": "float *llama_get_logits(void) { static float logits[256 * 256]; return logits; }",
}
"""Loads any model, and computes nothing."""


def field_names(struct: str) -> list[str]:
    return [name for name, *_ in _STRUCTS[struct][0]._fields_ if name != "_reserve"]


def compile_library(
    folder: Path,
    *,
    version: str = "0.5.0",
    extra: tuple[str, str, str] | None = None,
    without: Collection[str] = (),
    linked: Sequence[str] = (),
    bodies: Mapping[str, str] = MappingProxyType({}),
) -> Found:
    """`extra` is a struct, the field before which one more is declared, and its C type; its default is 0. `without`
    are functions that it does not have, `bodies` are functions in C that do something.
    """
    folder = Path(tempfile.mkdtemp(dir=folder))  # a file that is loaded must not be overwritten
    (folder / "fake.c").write_text(_source(version, extra, {*without}, bodies))
    path = folder / "libllama.so"
    assert COMPILER is not None, "the test is skipped without one"
    command = [COMPILER, "-w", "-shared", "-fPIC", "-o", str(path), str(folder / "fake.c"), *linked]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return Found(path, "a test")


def _source(version: str, extra: tuple[str, str, str] | None, without: set[str], bodies: Mapping[str, str]) -> str:
    written = {
        "llama_version": f'const char *llama_version(void) {{ return "{version}"; }}',
        "ggml_commit": 'const char *ggml_commit(void) { return "unknown"; }',
        "llama_print_system_info": 'const char *llama_print_system_info(void) { return ""; }',
        "ggml_backend_dev_count": "size_t ggml_backend_dev_count(void) { return 0; }",
        "llama_model_default_params": _returns("model", "llama_model_default_params(void)"),
        "llama_context_default_params": _returns("context", "llama_context_default_params(void)"),
        "llama_batch_init": _returns("batch", "llama_batch_init(int n, int e, int s)", _BATCH_ARRAYS),
        "ggml_threadpool_params_init": _THREADS,
        "llama_batch_free": "void llama_batch_free(struct batch b) {}",
        **bodies,
    }
    parts = ["#include <stdbool.h>", "#include <stddef.h>", "#include <stdlib.h>", "#include <string.h>"]
    parts += [_declaration(name, extra) for name in _STRUCTS]
    parts += [text for name, text in written.items() if name not in without]
    parts += [f"void {name}(void) {{}}" for name in REQUIRED if name not in {*written, *without}]
    return "\n".join(parts) + "\n"


def _declaration(struct: str, extra: tuple[str, str, str] | None) -> str:
    fields = []
    for name, kind, *_ in _STRUCTS[struct][0]._fields_:
        if extra is not None and extra[:2] == (struct, name):
            fields.append(f"{extra[2]} one_more;")
        if name == "cpumask":
            fields.append("bool cpumask[512];")
        elif name != "_reserve":
            fields.append(f"{_C_TYPES.get(kind, 'void *')} {name};")
    return f"struct {struct} {{ {' '.join(fields)} }};"


def _returns(struct: str, signature: str, more: str = "") -> str:
    values = _STRUCTS[struct][1]
    lines = "".join(f" value.{name} = {_literal(value)};" for name, value in values.items())
    return (
        f"struct {struct} {signature} {{ struct {struct} value; memset(&value, 0, sizeof value);"
        f"{lines}{more} return value; }}"
    )


def _literal(value: Any) -> str:
    return "0" if value is None else str(value).lower()


_BATCH_ARRAYS = " static long room[5][1024];" + "".join(
    f" value.{name} = room[{at}];" for at, name in enumerate(("token", "pos", "n_seq_id", "seq_id", "logits"))
)
_THREADS = """
void ggml_threadpool_params_init(struct threads *p, int n) {
    memset(p, 0, sizeof *p);
    p->n_threads = n; p->poll = 50;
}"""

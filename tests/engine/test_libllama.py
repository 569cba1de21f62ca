"""Libraries that are not what the binding expects are refused in one line, without a crash."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.libllama import layout, lib
from paddock.engine.libllama.functions import OPTIONAL, REQUIRED
from paddock.engine.libllama.layout import compare as compare
from paddock.engine.libllama.loading import Library, open_library
from paddock.engine.libllama.structs import ContextParams, ModelParams
from paddock.engine.loading import context_params, load_model, new_context
from paddock.errors import LibraryUnusable
from paddock.fleet.process.native import ask_build
from paddock.libraries import VARIABLE, Found
from tests.engine.fake_library import COMPILER, NEEDS_COMPILER, compile_library, field_names
from tests.forking import run_command
from tests.libraries.test_search import LINUX, elf_start
from tests.options import engine_options
from tests.server import Server
from tests.tiers import full

KNOWN = "Known are llama.cpp 0.4.1 and 0.5.0: pip install xllamacpp=="
OTHER_CPU = 258  # LoongArch


def _refusal(found: Found) -> str:
    with pytest.raises(LibraryUnusable) as caught:
        Library(found)
    message = caught.value.message
    assert "\n" not in message and message.startswith(f"cannot use {found.path} ({found.origin}): ")
    return message


def test_the_library_of_these_tests_is_known() -> None:
    assert layout.is_known(lib.version)
    assert layout.find_mismatch(lib) is None
    assert {*REQUIRED} <= {*vars(lib)}
    assert all(lib.has(name) == hasattr(lib, name) for name in OPTIONAL)


# ── libraries that a test compiles ───────────────────────────────────────────────────────────────────────────────────


@NEEDS_COMPILER
@pytest.mark.parametrize("version", ["0.5.0", "0.5.0-dev", "0.4.1-dev"])
def test_a_library_with_the_known_structs_is_used(tmp_path: Path, version: str) -> None:
    library = Library(compile_library(tmp_path, version=version))
    assert (library.version, library.commit) == (version, "")
    assert not library.has("llama_model_quantize_default_params")


@NEEDS_COMPILER
@pytest.mark.parametrize("version", ["0.6.0-dev", "0.4.0", "0.5.10", "1.0", ""])
def test_an_unknown_release_is_refused(tmp_path: Path, version: str) -> None:
    message = _refusal(compile_library(tmp_path, version=version))
    assert f"it is llama.cpp {version or 'without a version'}, which has unknown structs. {KNOWN}" in message


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (("model", "tensor_buft_overrides", "void *"), "llama_model_params.n_gpu_layers is 0 by default, expected -1"),
        (("model", "use_extra_bufts", "bool"), "llama_model_params.use_extra_bufts is False by default, expected True"),
        (("context", "n_batch", "unsigned"), "llama_context_params.n_batch is 0 by default, expected 2048"),
        (("context", "type_k", "void *"), "llama_context_params.type_k is 0 by default, expected 1"),
        (("context", "embeddings", "void *"), "llama_context_params.offload_kqv is False by default, expected True"),
        (("context", "op_offload", "bool"), "llama_context_params.op_offload is False by default, expected True"),
        (("threads", "poll", "int"), "ggml_threadpool_params.poll is 0 by default, expected 50"),
        (("batch", "token", "void *"), "llama_batch.embd is set by default, expected null"),
        (("batch", "seq_id", "void *"), "llama_batch.seq_id is not set"),
    ],
)
def test_one_field_more_is_noticed(tmp_path: Path, extra: tuple[str, str, str], says: str) -> None:
    assert extra[1] in field_names(extra[0])
    message = _refusal(compile_library(tmp_path, extra=extra))
    assert f"it is llama.cpp 0.5.0 with other structs: {says}. {KNOWN}" in message


@NEEDS_COMPILER
@pytest.mark.parametrize("extra", [("model", "main_gpu", "int"), ("context", "kv_unified", "bool")])
def test_a_field_between_fields_with_the_same_default_is_known_by_the_release_only(
    tmp_path: Path, extra: tuple[str, str, str]
) -> None:
    assert Library(compile_library(tmp_path, extra=extra)).version == "0.5.0"
    _refusal(compile_library(tmp_path, extra=extra, version="0.5.1"))


@NEEDS_COMPILER
def test_a_longer_struct_overwrites_nothing(tmp_path: Path) -> None:
    """A field behind the last one shifts nothing: it keeps the library's own default."""
    library = Library(compile_library(tmp_path, extra=("context", "_reserve", "double")))
    params = library.llama_context_default_params()
    assert (params.n_ctx, params.swa_full) == (512, True)


@NEEDS_COMPILER
def test_functions_that_are_missing_are_named(tmp_path: Path) -> None:
    without = {"llama_n_ctx_seq", "llama_set_adapters_lora"}
    message = _refusal(compile_library(tmp_path, without=without))
    assert "it is llama.cpp 0.5.0 without llama_n_ctx_seq, llama_set_adapters_lora. " in message
    without |= {"llama_encode", "llama_free", "llama_synchronize"}
    assert "and 2 more functions. " in _refusal(compile_library(tmp_path, without=without))


@NEEDS_COMPILER
def test_a_library_before_versions_and_another_library(tmp_path: Path) -> None:
    old = _refusal(compile_library(tmp_path, without={"llama_version"}))
    assert f"it is llama.cpp before 0.1.0: it has no function llama_version. {KNOWN}" in old
    message = _refusal(compile_library(tmp_path, without={"llama_decode"}))
    assert message.endswith("it is another library: it has no function llama_decode")


@NEEDS_COMPILER
@LINUX
@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("libgomp-of-this-test.so.1", "libgomp.so.1 is missing: install it (Debian, Ubuntu: apt install libgomp1;"),
        ("libggml-of-this-test.so.0", "libggml-of-this-test.so.0: cannot open shared object file"),
    ],
)
def test_a_library_that_needs_another_one(tmp_path: Path, missing: str, says: str) -> None:
    stub = compile_library(tmp_path, linked=[f"-Wl,-soname,{missing}"]).path
    found = compile_library(tmp_path, linked=["-Wl,--no-as-needed", str(stub)])
    stub.unlink()
    assert says in _refusal(found)


# ── files that are no library for this machine ───────────────────────────────────────────────────────────────────────


@LINUX
def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "libllama.so"
    assert _refusal(Found(path, "a test")).endswith("there is no such file")
    path.write_text("no library")
    assert _refusal(Found(path, "a test")).endswith("it is no library")
    path.write_bytes(elf_start(OTHER_CPU))
    assert "it is for another CPU (loongarch64, this one is" in _refusal(Found(path, "a test"))
    real = Path(lib.path).read_bytes()
    path.write_bytes(real[: len(real) // 2])
    size = f"it is incomplete ({len(real) // 2:,} of at least "
    assert size in _refusal(Found(path, "a test")), "loading it would end the process with SIGBUS"


def test_no_library_and_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "paddock.engine.libllama.loading.candidates"
    monkeypatch.setattr(module, lambda _: iter([]))
    with pytest.raises(LibraryUnusable, match=re.escape("there is no libllama: pip install xllamacpp==")):
        open_library()
    wrong, right = Found(tmp_path / "none.so", "xllamacpp"), Found(lib.path, "the system")
    monkeypatch.setattr(module, lambda _: iter([wrong, right]))
    with pytest.raises(LibraryUnusable) as caught:
        open_library()
    assert caught.value.message.endswith(f"there is no such file; or set PADDOCK_LIBLLAMA={lib.path} (the system)")
    monkeypatch.setattr(module, lambda _: iter([right, wrong]))
    assert open_library().path == lib.path


# ── which changes of a struct the defaults show ──────────────────────────────────────────────────────────────────────

_INSERTED = st.sampled_from([ctypes.c_bool, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p, ctypes.c_uint64])


def _with_field(struct: Any, before: str, kind: Any) -> Any:
    """The struct with one more field."""
    fields = [field for field in struct._fields_ if field[0] != "_reserve"]
    at = [name for name, _ in fields].index(before)
    return type("Changed", (ctypes.Structure,), {"_fields_": (*fields[:at], ("one_more", kind), *fields[at:])})


@given(st.sampled_from([(ModelParams, layout.MODEL), (ContextParams, layout.CONTEXT)]), _INSERTED, st.data())
def test_a_new_field_is_noticed_unless_all_fields_read_their_own_defaults(
    params: tuple[Any, dict[str, Any]], kind: Any, data: st.DataObject
) -> None:
    struct, defaults = params
    changed = _with_field(struct, data.draw(st.sampled_from(list(defaults))), kind)
    theirs = changed()
    for name, value in defaults.items():
        if value is not None:
            setattr(theirs, name, value)
    ours = struct.from_buffer_copy(bytes(theirs).ljust(ctypes.sizeof(struct), b"\0"))
    shifted = [name for name in defaults if getattr(changed, name).offset != getattr(struct, name).offset]
    noticed = list(compare("", ours, defaults))
    # Where neighbours have the same default, a shift by one of them changes no value: the release tells them apart.
    assert noticed or all(not getattr(ours, name) for name in shifted)


def test_neighbours_with_the_same_default_are_told_apart_by_the_context(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the fields that the defaults leave in doubt, kv_unified is the one that Paddock sets."""
    options = engine_options(n_threads=1)
    model = load_model(tiny_models["llama"], options, lambda _: None)
    for unified in (True, False):
        params = context_params(options, n_ctx=1024, n_batch=64, unified=unified)
        params.n_seq_max = 4
        lib.llama_free(new_context(model, params, options))
        create = lib.llama_init_from_model

        def misread(model: Any, params: Any, create: Any = create) -> Any:
            params = ContextParams.from_buffer_copy(params)
            params.kv_unified = not params.kv_unified
            return create(model, params)

        with monkeypatch.context() as patched:
            patched.setattr(lib, "llama_init_from_model", misread)
            with pytest.raises(LibraryUnusable, match=f"kv_unified {unified} became {not unified}"):
                new_context(model, params, options)
    lib.llama_model_free(model)


# ── what people see ──────────────────────────────────────────────────────────────────────────────────────────────────


@NEEDS_COMPILER
def test_another_process_reports_a_library_that_cannot_be_used(tmp_path: Path) -> None:
    """As `paddock doctor` and `paddock build` ask."""
    found = compile_library(tmp_path, extra=("context", "n_batch", "unsigned"))
    build = ask_build(found.path)
    assert build.failure == _refusal(Found(found.path, "PADDOCK_LIBLLAMA"))
    assert not build.illegal_instruction
    assert ask_build(lib.path).version == lib.version


@pytest.fixture(params=["text", "other cpu", "other structs", "other release"])
def refused(request: pytest.FixtureRequest, tmp_path: Path) -> Found:
    """A library that cannot be used, as a user would name it."""
    path = tmp_path / "libllama.so"
    match request.param:
        case "text":
            path.write_text("no library")
        case "other cpu":
            path.write_bytes(elf_start(OTHER_CPU))
        case _ if COMPILER is None:
            pytest.skip("there is no C compiler")
        case "other structs":
            path = compile_library(tmp_path, extra=("context", "n_batch", "unsigned")).path
        case "other release":
            path = compile_library(tmp_path, version="0.6.0-dev").path
    return Found(path, VARIABLE)


@full
@LINUX
def test_a_server_and_the_doctor_show_the_line(refused: Found, tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    line, env = _refusal(refused), {VARIABLE: str(refused.path)}
    model = str(tiny_models["llama"])
    with Server("-m", model, env=env) as server:
        response = server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["message"]) == (503, "library_unusable", line)
    with Server("-m", model, env=env, lazy=False) as server:
        assert server.process.wait(100) == 1
    (reason,) = [line for line in server.output if line.startswith("paddock: ")]
    assert line in reason
    done = run_command("doctor", env=os.environ | env, cwd=tmp_path)
    assert done.returncode == 1
    (found,) = [each for each in done.stdout.splitlines() if each.startswith("problem") and "library" in each.split()]
    assert line in found

"""The binding of libmtmd: a library without it, or with another one, is refused in one line."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import msgspec
import pytest

from paddock.engine import open_engine
from paddock.engine.libllama.loading import Library
from paddock.engine.libllama.mtmd import _FUNCTIONS, DEFAULTS, FILE_DEFAULTS, FileOptions, MediaLibrary, MediaParams
from paddock.errors import LibraryUnusable
from paddock.libraries import Found
from tests import tiny_models, tiny_projectors
from tests.engine.fake_library import COMPILER, NEEDS_COMPILER, compile_library
from tests.options import engine_options

pytestmark = NEEDS_COMPILER

_C = {ctypes.c_bool: "bool", ctypes.c_float: "float", ctypes.c_int: "int", ctypes.c_int64: "long"}
_LLAMA = {
    "llama_model_n_embd_inp": "int llama_model_n_embd_inp(void) { return 0; }",
    "llama_set_causal_attn": "void llama_set_causal_attn(void) {}",
}


def _library(folder: Path) -> Library:
    return Library(compile_library(folder, bodies=_LLAMA))


def _add_mtmd(found: Path, *, extra: tuple[str, str] = ("", ""), without: str = "") -> None:
    """A libmtmd beside a library. `extra`: one more field of the parameters before another one, and its type."""
    structs = {
        "mtmd_context_params_default": (MediaParams, DEFAULTS),
        "mtmd_helper_init_opt_default": (FileOptions, FILE_DEFAULTS),
    }
    source = ["#include <stdbool.h>", "#include <string.h>"]
    source.append('const char *mtmd_default_marker(void) { static const char marker[] = "<m>"; return marker; }')
    for function, (struct, defaults) in structs.items():
        fields = []
        for name, kind, *_ in struct._fields_:
            fields += [f"{extra[1]} one_more;"] if name == extra[0] else []
            fields += [f"{_C.get(kind, 'void *')} {name};"] if name != "_reserve" else []
        values = "".join(f"v.{name} = {_literal(value)};" for name, value in defaults.items())
        values += "v.media_marker = (void *)mtmd_default_marker();" if struct is MediaParams else ""
        source.append(f"struct s_{function} {{ {' '.join(fields)} }};")
        body = f"struct s_{function} v; memset(&v, 0, sizeof v); {values} return v;"
        source.append(f"struct s_{function} {function}(void) {{ {body} }}")
    others = {*_FUNCTIONS} - {*structs, "mtmd_default_marker", without}
    source += [f"void {name}(void) {{}}" for name in others]
    (found.parent / "mtmd.c").write_text("\n".join(source) + "\n")
    assert COMPILER is not None
    command = [COMPILER, "-w", "-shared", "-fPIC", "-o", str(found.parent / "libmtmd.so"), str(found.parent / "mtmd.c")]
    subprocess.run(command, check=True, capture_output=True)


def _literal(value: object) -> str:
    return "0" if value is None else str(value).lower()


def _refusal(library: Library) -> str:
    with pytest.raises(LibraryUnusable) as error:
        MediaLibrary(library)
    return error.value.message


def test_a_library_with_the_known_structs_is_used(tmp_path: Path) -> None:
    library = _library(tmp_path)
    _add_mtmd(library.path)
    assert MediaLibrary(library).path == library.path.parent / "libmtmd.so"


def test_a_library_without_it(tmp_path: Path) -> None:
    assert "it was built without libmtmd, and there is no libmtmd beside it" in _refusal(_library(tmp_path))


def test_a_projector_beside_the_model_is_left_out_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the settings name is not."""
    tiny_models.llama(tmp_path / "m.gguf", layers=1)
    tiny_projectors.llava(tmp_path / "mmproj.gguf")

    def refuse(_: Library) -> MediaLibrary:
        raise LibraryUnusable("it was built without libmtmd")

    monkeypatch.setattr("paddock.engine.projector.open_media_library", refuse)
    options = engine_options(n_ctx=256, n_threads=1, mmproj=str(tmp_path / "mmproj.gguf"))
    engine = open_engine(str(tmp_path / "m.gguf"), options, lambda _: None)
    assert (engine.media, engine.info.media) == (None, ())
    engine.close()
    with pytest.raises(LibraryUnusable):
        open_engine(str(tmp_path / "m.gguf"), msgspec.structs.replace(options, mmproj_auto=False), lambda _: None)


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    library = _library(tmp_path)
    _add_mtmd(library.path, without="mtmd_encode_chunk")
    assert "it has no function mtmd_encode_chunk" in _refusal(library)
    library = Library(Found(compile_library(tmp_path).path, "a test"))
    _add_mtmd(library.path)
    assert "it has no function llama_model_n_embd_inp" in _refusal(library)


@pytest.mark.parametrize(
    ("field", "kind", "says"),
    [
        ("print_timings", "void *", "mtmd_context_params."),
        ("media_marker", "void *", "mtmd_context_params.flash_attn_type is"),
        ("image_min_tokens", "int", "mtmd_context_params.image_min_tokens is 0"),
        ("batch_max_tokens", "int", "mtmd_context_params.batch_max_tokens is 0"),
        ("ffmpeg_bin_dir", "long", "mtmd_helper_init_opt.timestamp_interval_ms is 0"),
    ],
)
def test_one_field_more_is_noticed(tmp_path: Path, field: str, kind: str, says: str) -> None:
    library = _library(tmp_path)
    _add_mtmd(library.path, extra=(field, kind))
    assert f"it has other structs: {says}" in _refusal(library)

"""llama.cpp's libraries, of which a wheel contains six copies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def _tool() -> Any:
    file = Path(__file__).parents[1] / "tools" / "libraries.py"
    spec = importlib.util.spec_from_file_location("libraries", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_copies_become_links_and_other_files_stay(tmp_path: Path) -> None:
    contents = {"libllama": b"llama" * 100, "libggml": b"ggml" * 100}
    for folder in ("lib", "llama_cpp/lib"):
        (tmp_path / folder).mkdir(parents=True)
        for name, data in contents.items():
            for ending in ("so", "so.0", "so.0.5.0"):
                (tmp_path / folder / f"{name}.{ending}").write_bytes(data)
    (tmp_path / "lib" / "libother.so").write_bytes(b"other" * 80)  # the same size, but other content
    (tmp_path / "lib" / "notes.txt").write_bytes(contents["libllama"])
    before = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert _tool().share(tmp_path) == 5 * 500 + 5 * 400
    assert {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    own = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()}
    assert own == {
        "llama_cpp/lib/libllama.so.0.5.0", "llama_cpp/lib/libggml.so.0.5.0", "lib/libother.so", "lib/notes.txt",
    }  # fmt: skip
    assert _tool().share(tmp_path) == 0, "a second run changes nothing"

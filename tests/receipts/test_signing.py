from __future__ import annotations

import builtins
import stat
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import StartupError
from paddock.receipts import SigningKey, load_public_key
from paddock.receipts.signing import signature_problem


def test_a_key_in_a_file(tmp_path: Path) -> None:
    key, path = SigningKey.new(), tmp_path / "key.pem"
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load(path).public == key.public
    with pytest.raises(StartupError, match="exists already"):
        key.save(path)
    (tmp_path / "public.pem").write_bytes(key.public_pem())
    (tmp_path / "public.hex").write_text(f"{key.public.upper()}\n")
    assert load_public_key(tmp_path / "public.pem") == load_public_key(tmp_path / "public.hex") == key.public
    signed = SigningKey.load(path).sign({"a": 1, "signature": None})
    assert signature_problem(signed) == ""
    assert "does not fit" in signature_problem(signed | {"a": 2})


def test_wrong_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for read in (SigningKey.load, load_public_key):
        with pytest.raises(StartupError, match="cannot read"):
            read(path)
    path.write_text("a key")
    for read in (SigningKey.load, load_public_key):
        with pytest.raises(StartupError, match="key is not a p"):
            read(path)
    with pytest.raises(StartupError, match="cannot write"):
        SigningKey.new().save(tmp_path / "none" / "key")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refusing(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(StartupError, match=r"pip install 'paddock-llm\[receipts\]'"):
        SigningKey.new()
    with pytest.raises(StartupError, match="cryptography"):
        SigningKey.load(tmp_path / "key")
    with pytest.raises(StartupError, match="cryptography"):
        signature_problem({"signature": {}})

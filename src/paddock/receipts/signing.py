"""Ed25519 signatures. The package `cryptography` is imported only where there is a key or a signature."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddock.errors import StartupError
from paddock.receipts.receipt import signed_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519"
_MISSING = "signatures of receipts need the package cryptography: pip install 'paddock-llm[receipts]'"


class SigningKey:
    """A server's private key. It signs receipts."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = _hex(key.public_key())
        """The public key: 32 bytes, in hexadecimal."""

    @classmethod
    def new(cls) -> SigningKey:
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Raises `StartupError`, which names the file and what is wrong with it."""
        ed25519 = _ed25519()
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data = _read(path)
        try:
            key = load_pem_private_key(data, None)
        except (ValueError, TypeError) as error:
            raise StartupError(f"{path} is not a private key without a password, in PEM form: {error}") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise StartupError(f"{path} is not an Ed25519 key; make one with `paddock keys receipt {path}`")
        return cls(key)

    def save(self, path: Path) -> None:
        """Write a new file that only its owner can read. Raises `StartupError`."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        data = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
        except FileExistsError:
            raise StartupError(f"{path} exists already; a key is never overwritten") from None
        except OSError as error:
            raise StartupError(f"cannot write {path}: {error.strerror}") from None

    def public_pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, receipt: dict[str, Any]) -> dict[str, Any]:
        """The receipt with this key's signature instead of any other."""
        value = self._key.sign(signed_bytes(receipt)).hex()
        return receipt | {"signature": {"algorithm": ALGORITHM, "public_key": self.public, "value": value}}


def load_public_key(path: Path) -> str:
    """The key in the file, in hexadecimal: in PEM form, or in hexadecimal. Raises `StartupError`."""
    data = _read(path)
    text = data.decode("ascii", "replace").strip()
    if len(text) == 64 and set(text.lower()) <= set("0123456789abcdef"):
        return text.lower()
    ed25519 = _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise StartupError(f"{path} is not a public key, in PEM form or in 64 hexadecimal digits: {error}") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise StartupError(f"{path} is not an Ed25519 key")
    return _hex(key)


def signature_problem(receipt: dict[str, Any]) -> str:
    """Why the signature is not one of this receipt by the key that it names; empty: it is. Raises `StartupError` if the
    package is missing.
    """
    from_key = _ed25519().Ed25519PublicKey.from_public_bytes
    from cryptography.exceptions import InvalidSignature

    signature = receipt["signature"]
    if signature["algorithm"] != ALGORITHM:
        return f"the signature's algorithm is {str(signature['algorithm'])[:40]!r}, not {ALGORITHM!r}"
    try:
        public = bytes.fromhex(signature["public_key"])
        value = bytes.fromhex(signature["value"])
        # `fromhex` ignores white space and case: a changed byte must not pass.
        if (public.hex(), value.hex()) != (signature["public_key"], signature["value"]):
            raise ValueError
        from_key(public).verify(value, signed_bytes(receipt))
    except ValueError:
        return "the signature is not written in hexadecimal, or has a wrong length"
    except InvalidSignature:
        return "the signature does not fit: the receipt was changed, or another key made the signature"
    return ""


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise StartupError(_MISSING) from None
    return ed25519


def _hex(key: Any) -> str:
    raw: bytes = key.public_bytes_raw()
    return raw.hex()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from None

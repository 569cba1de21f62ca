"""Images and sound in prompts: what may reach a decoder.

Files come from clients, so their format and size are read from their headers before anything is decoded.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paddock.engine import BrokenMedia, MediaReader, ReadPrompt
from paddock.errors import InvalidRequest
from paddock.types import MediaFile, MediaKind

MOST_FILES = 64
"""Of one prompt."""
LARGEST_FILE = 32 << 20
"""Bytes of one file."""
MOST_PIXELS = 64 << 20
"""Of one image: it takes three bytes each when it is decoded."""
LONGEST_SIDE = 1 << 15
LONGEST_AUDIO = 60 * 60
"""Seconds."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    format: str
    width: int
    height: int


def check_media(files: Sequence[MediaFile], media: MediaReader | None) -> str:
    """The marker that stands for a file. Raises `InvalidRequest` if the model does not read such files."""
    for file in files:
        if file.kind != "any" or media is None:
            _check_kind(file, file.kind, media)
    if len(files) > MOST_FILES:
        reason = f"the prompt has {len(files)} images and audio files; the limit is {MOST_FILES}"
        raise InvalidRequest(reason, param=files[MOST_FILES].param)
    assert media is not None, "it reads some kind"
    return media.marker


def _check_kind(file: MediaFile, kind: MediaKind | Literal["any"], media: MediaReader | None) -> None:
    kinds: tuple[MediaKind, ...] = () if media is None else media.kinds
    if kind not in kinds:
        missing = "it has no projector (mmproj)" if media is None else f"its projector reads {kinds[0]} input only"
        read = "images or audio" if kind == "any" else f"{kind} input"
        raise InvalidRequest(f"{file.param}: this model does not read {read}: {missing}", param=file.param)


def read_media(files: Sequence[MediaFile], text: str, media: MediaReader, *, add_special: bool) -> ReadPrompt:
    """Tokenise a rendered text with its files. Raises `InvalidRequest` for a file that cannot be read."""
    data = [_checked(file, media) for file in files]
    try:
        read = media.read(text, data, add_special=add_special)
    except BrokenMedia as error:
        broken = files[error.index]
        what = "file" if broken.kind == "any" else broken.kind
        reason = f"{broken.param}: the {what} cannot be decoded: the file is broken"
        raise InvalidRequest(reason, param=broken.param) from None
    if read.spans and read.spans[-1].end == len(read.tokens):
        raise InvalidRequest("text must follow the last image or audio", param=files[-1].param)
    return read


def _checked(file: MediaFile, media: MediaReader) -> bytes:
    """The bytes of a file whose header is sound."""

    def refuse(reason: str) -> InvalidRequest:
        return InvalidRequest(f"{file.param}: {reason}", param=file.param)

    if len(file.data) > LARGEST_FILE * 4 // 3 + 4 or len(file.content or b"") > LARGEST_FILE:
        raise refuse(f"the file is larger than {LARGEST_FILE >> 20} MiB")
    try:
        data = base64.b64decode(file.data, validate=True) if file.content is None else file.content
    except (binascii.Error, ValueError):
        raise refuse("the data is not valid base64") from None
    if not data:
        raise refuse("the file is empty")
    kind = file.kind
    if kind == "any":
        kind = "audio" if audio_seconds(data) is not None else "image"
        _check_kind(file, kind, media)
    if kind == "image":
        header = image_header(data)
        if header is None:
            raise refuse(f"the image {_problem(data)}: PNG, JPEG, GIF and BMP are supported")
        pixels = header.width * header.height
        if not pixels or max(header.width, header.height) > LONGEST_SIDE or pixels > MOST_PIXELS:
            raise refuse(
                f"the image has {header.width} x {header.height} pixels; allowed are {LONGEST_SIDE} on a side and "
                f"{MOST_PIXELS >> 20} Mi in all"
            )
    elif (seconds := audio_seconds(data)) is None:
        raise refuse(f"the audio {_problem(data)}: WAV, MP3 and FLAC are supported")
    elif seconds > LONGEST_AUDIO:
        raise refuse(f"the audio has {seconds:.0f} seconds; the limit is {LONGEST_AUDIO}")
    return data


# Formats that browsers and phones use, and llama.cpp does not decode.
_OTHER_FORMATS = (
    (0, b"RIFF", 8, b"WEBP", "WebP"),
    (4, b"ftyp", 8, b"avif", "AVIF"),
    (4, b"ftyp", 8, b"hei", "HEIC"),
    (4, b"ftyp", 8, b"mif1", "HEIC"),
    (4, b"ftyp", 0, b"", "MP4 (M4A)"),
    (0, b"OggS", 0, b"", "Ogg (Vorbis, Opus)"),
    (0, b"\x1aE\xdf\xa3", 0, b"", "WebM (Matroska)"),
    (0, b"II*\0", 0, b"", "TIFF"),
    (0, b"MM\0*", 0, b"", "TIFF"),
    (0, b"<svg", 0, b"", "SVG"),
    (0, b"%PDF", 0, b"", "PDF"),
)


def _problem(data: bytes) -> str:
    """Why a file is none of the supported formats."""
    for at, magic, further, more, name in _OTHER_FORMATS:
        if data.startswith(magic, at) and data.startswith(more, further):
            return f"is {name}, which llama.cpp does not decode"
    return "has an unknown format or a broken header"


# ── images ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def image_header(data: bytes) -> ImageHeader | None:
    """The format and size of an image file. None: the format is unknown, or the header is broken."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return ImageHeader("PNG", *struct.unpack_from(">II", data, 16))
        if data.startswith((b"GIF87a", b"GIF89a")):
            return ImageHeader("GIF", *struct.unpack_from("<HH", data, 6))
        if data.startswith(b"BM"):
            return _bmp(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
    except struct.error:
        return None
    return None


def _bmp(data: bytes) -> ImageHeader:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if size == 12 else "<ii", data, 18)
    return ImageHeader("BMP", abs(width), abs(height))


def _jpeg(data: bytes) -> ImageHeader | None:
    """The frame header is behind any number of other segments."""
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return ImageHeader("JPEG", width, height)
        if marker in (0xD9, 0xDA):  # the end, or the picture, without a frame header
            return None
        at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
    return None


_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


# ── audio ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def audio_seconds(data: bytes) -> float | None:
    """The length of an audio file by its header, at least. None: the format is unknown, or the header is broken."""
    try:
        if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
            return _wav(data)
        if data.startswith(b"fLaC"):
            return _flac(data)
        if data.startswith(b"ID3") or (data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xE0 == 0xE0):
            return len(data) * 8 / _MP3_RATE
    except (struct.error, ZeroDivisionError):
        return None
    return None


_MP3_RATE = 32_000
"""Bits per second, of files for speech."""


def _wav(data: bytes) -> float | None:
    at, rate = 12, 0
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"fmt ":
            (rate,) = struct.unpack_from("<I", data, at + 16)
        elif name == b"data":
            return float(min(size, len(data) - at - 8) / rate)
        at += 8 + size + size % 2
    return None


def _flac(data: bytes) -> float | None:
    if data[4] & 0x7F:  # the first block describes the stream
        return None
    (bits,) = struct.unpack_from(">Q", data, 18)
    return float((bits & ((1 << 36) - 1)) / (bits >> 44))

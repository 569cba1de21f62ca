"""The headers of images and audio: every size is read as it is, and no bytes are an exception."""

from __future__ import annotations

import io
import struct
import wave

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paddock.worker.media_files import audio_seconds, image_header

FORMATS = ("PNG", "JPEG", "GIF", "BMP")


@given(st.sampled_from(FORMATS), st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_the_size_of_an_image(format: str, width: int, height: int, progressive: bool) -> None:
    file = io.BytesIO()
    options = {"progressive": progressive, "exif": b"Exif\0\0" + b"x" * width} if format == "JPEG" else {}
    Image.new("RGB", (width, height)).save(file, format, **options)
    found = image_header(file.getvalue())
    assert found is not None
    assert (found.format, found.width, found.height) == (format, width, height)


@given(st.sampled_from(FORMATS), st.data())
def test_a_broken_image_is_no_exception(format: str, data: st.DataObject) -> None:
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, format)
    content = bytearray(file.getvalue())
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=9)):
        content[at] = byte
    image_header(bytes(content[: data.draw(st.integers(0, len(content)))]))


@given(st.integers(1, 48000), st.integers(1, 2), st.integers(0, 5000))
def test_the_length_of_a_wav(rate: int, channels: int, frames: int) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(b"\0\0" * channels * frames)
    assert audio_seconds(file.getvalue()) == pytest.approx(frames / rate)


def test_the_length_of_a_flac() -> None:
    stream = struct.pack(">HH6xQ16x", 16, 16, 44100 << 44 | 15 << 36 | 88200)
    assert audio_seconds(b"fLaC\x80\0\0\x22" + stream) == pytest.approx(2.0)


@given(
    st.sampled_from([b"RIFF0000WAVE", b"RIFF0000WAVEfmt ", b"fLaC\0", b"ID3", b"\xff\xfb", b""]), st.binary(max_size=80)
)
def test_broken_audio_is_no_exception(begin: bytes, rest: bytes) -> None:
    audio_seconds(begin + rest)

"""A multimodal projector: the network that turns images and sound into embeddings for a model (libmtmd).

`read` runs on the prompt thread: it decodes files, prepares them and tokenises the prompt. `encode` runs on the engine
thread. A media token has no id in the vocabulary, so it gets a negative one, made of a hash of the file, of its
preparation and of its place in it. Everything that knows prompts by their tokens, the cache first, then treats equal
images as equal text.
"""

from __future__ import annotations

import ctypes
import hashlib
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine import library
from paddock.engine.fingerprint import file_digest
from paddock.engine.libllama import lib
from paddock.engine.libllama.mtmd import AUDIO, TEXT, DecoderPosition, InputText, open_media_library
from paddock.engine.protocol import BrokenMedia
from paddock.errors import DecodeFailed, InvalidRequest, LibraryUnusable
from paddock.types import EngineOptions, MediaKind, MediaSpan

Embeddings = npt.NDArray[np.float32]

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_IDS = 1 << 31
_NO_PROGRAMS = ctypes.create_string_buffer(b"/nonexistent")
"""The folder of programs for video. llama.cpp must not start any."""
_KEPT_BYTES = 64 << 20
"""Host memory for embeddings of images that no running request has."""
# A picture of two by two pixels, as a BMP file, and its rows as red, green and blue.
_PIXELS = bytes(range(10, 22))
_PICTURE = (
    b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0\x02\0\0\0\x01\0\x18\0\0\0\0\0\x10\0\0\0" + bytes(16)
    + bytes([18, 17, 16, 21, 20, 19, 0, 0, 12, 11, 10, 15, 14, 13, 0, 0])
)  # fmt: skip


class MediaChunk:
    """An image, a part of one, or sound, prepared for `encode`. It holds libmtmd's object and, once it is encoded, its
    embeddings.
    """

    def __init__(self, key: bytes, pointer: Any, free: Callable[[Any], None]) -> None:
        self.key = key
        self.pointer = pointer
        self.embeddings: Embeddings | None = None
        self._free = free

    def __del__(self) -> None:
        self._free(self.pointer)


class ReadMedia(msgspec.Struct, frozen=True):
    """A prompt with media."""

    tokens: list[int]
    spans: tuple[MediaSpan, ...]


class Projector:
    def __init__(
        self, path: Path, model: Any, options: EngineOptions, *, n_ubatch: int, n_batch: int, shares_grids: bool
    ) -> None:
        """`shares_grids`: prefixes can be shared also where the tokens of an image have rows and columns as positions.

        Raises `ModelLoadFailed`, or `LibraryUnusable` if this build of llama.cpp cannot read media.
        """
        self._mtmd = mtmd = open_media_library(lib)
        mtmd.mtmd_helper_log_set(library.log.callback, None)
        self._model = model
        self._n_ubatch, self._n_batch = n_ubatch, n_batch
        # Random, so that no text contains it.
        self.marker = f"<__media_{secrets.token_hex(8)}__>"
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = options.mmproj_offload and options.n_gpu_layers != 0
        params.print_timings = False
        params.n_threads = options.n_threads
        marker = ctypes.create_string_buffer(self.marker.encode())  # libmtmd copies it
        params.media_marker = ctypes.addressof(marker)
        params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
        params.image_min_tokens = options.image_min_tokens or -1
        params.image_max_tokens = options.image_max_tokens or -1
        self._context = mtmd.mtmd_init_from_file(str(path).encode(), model, params)
        if not self._context:
            raise library.load_failure(f"cannot load the projector {path.name}")
        self._size = int(mtmd.llama_model_n_embd_inp(model))
        self.uses_grid_positions = bool(mtmd.mtmd_decode_use_mrope(self._context))
        """Tokens of an image have rows and columns as positions (M-RoPE), and so fewer positions than tokens."""
        self._shares_grids = shares_grids
        kinds = {"image": mtmd.mtmd_support_vision, "audio": mtmd.mtmd_support_audio}
        self.kinds: tuple[MediaKind, ...] = tuple(kind for kind, has in kinds.items() if has(self._context))  # type: ignore[misc]
        self._preparation = f"{file_digest(path)} {options.image_min_tokens} {options.image_max_tokens}".encode()
        self._kept: OrderedDict[bytes, Embeddings] = OrderedDict()
        self._kept_bytes = 0
        self.encoded = 0
        """How many chunks were encoded so far."""
        self._encode_seconds: list[float] = []
        self._self_test()

    @classmethod
    def open(cls, model: Any, options: EngineOptions, **shape: Any) -> Projector | None:
        """The projector of these options. None, with a line in the log: this build of llama.cpp reads no media, and the
        projector was only found beside the model.
        """
        path = Path(options.mmproj)
        try:
            return cls(path, model, options, **shape)
        except LibraryUnusable as error:
            if not options.mmproj_auto:
                raise
            sys.stderr.write(f"<4>the projector {path.name} is not used: {error.message}\n")
            return None

    # ── prompts: thread-safe ─────────────────────────────────────────────────────────────────────────────────────────

    def read(self, text: str, files: Sequence[bytes], *, add_special: bool) -> ReadMedia:
        """Tokenise a text with a marker for each file. The caller has checked their formats.

        Raises `BrokenMedia` for a file that cannot be read, and `InvalidRequest`.
        """
        bitmaps: list[Any] = []
        try:
            for index, file in enumerate(files):
                bitmap = self._bitmap(file)
                if bitmap is None:
                    raise BrokenMedia(index)
                bitmaps.append(bitmap)
            return self._tokenize(text, bitmaps, add_special=add_special)
        finally:
            for bitmap in bitmaps:
                self._mtmd.mtmd_bitmap_free(bitmap)

    def _bitmap(self, file: bytes) -> Any:
        """None: it cannot be decoded."""
        mtmd = self._mtmd
        options = mtmd.mtmd_helper_init_opt_default()
        options.ffmpeg_bin_dir = ctypes.addressof(_NO_PROGRAMS)
        found = mtmd.mtmd_helper_bitmap_init_from_buf(self._context, file, len(file), False, options)
        if not found.bitmap:
            return None
        mtmd.mtmd_bitmap_set_id(found.bitmap, hashlib.sha256(file).hexdigest().encode())
        return found.bitmap

    def _tokenize(self, text: str, bitmaps: Sequence[Any], *, add_special: bool) -> ReadMedia:
        mtmd, data = self._mtmd, text.encode("utf-8")
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            given = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
            wanted = InputText(data, len(data), add_special, True)
            status = int(mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(wanted), given, len(bitmaps)))
            if status == 1:
                raise InvalidRequest("the chat template does not render every image or audio once", param="messages")
            if status:
                raise InvalidRequest("an image or audio cannot be prepared for this model", param="messages")
            return self._collect(chunks)
        finally:
            mtmd.mtmd_input_chunks_free(chunks)

    def _collect(self, chunks: Any) -> ReadMedia:
        mtmd = self._mtmd
        tokens: list[int] = []
        spans: list[MediaSpan] = []
        file, place = b"", 0
        for index in range(int(mtmd.mtmd_input_chunks_size(chunks))):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            kind = int(mtmd.mtmd_input_chunk_get_type(chunk))
            if kind == TEXT:
                count = ctypes.c_size_t()
                text = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
                tokens += text[: count.value]
                continue
            id = bytes(mtmd.mtmd_input_chunk_get_id(chunk) or b"")
            file, place = id, place + 1 if id == file else 0
            size = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
            both_ways = bool(mtmd.mtmd_decode_use_non_causal(self._context, chunk))
            whole, most = both_ways or self.uses_grid_positions, self._n_ubatch if both_ways else self._n_batch
            if whole and size > most:
                option = "--ubatch-size" if both_ways else "--batch-size"
                raise InvalidRequest(
                    f"an image has {size} tokens, which must be computed together, and the most is {most}: send a "
                    f"smaller image, or start the server with a larger {option}",
                    param="messages",
                )
            key = hashlib.sha256(b"%b %b %d %d" % (self._preparation, file, place, size)).digest()
            copied = MediaChunk(key, mtmd.mtmd_input_chunk_copy(chunk), mtmd.mtmd_input_chunk_free)
            is_private = self.uses_grid_positions and not (self._shares_grids and self._is_regular(copied))
            spans.append(MediaSpan(len(tokens), len(tokens) + size, copied, whole, both_ways, is_private))
            tokens += media_ids(key, size)
        return ReadMedia(tokens, tuple(spans))

    # ── steps: the engine thread ─────────────────────────────────────────────────────────────────────────────────────

    def is_encoded(self, chunk: MediaChunk) -> bool:
        return chunk.embeddings is not None or chunk.key in self._kept

    def encode(self, chunk: MediaChunk) -> Embeddings:
        """The embeddings of a chunk, with a row for each token. Raises `DecodeFailed`."""
        if chunk.embeddings is None:
            found = self._kept.get(chunk.key)
            chunk.embeddings = self._encode(chunk) if found is None else found
            self._keep(chunk.key, chunk.embeddings)
        return chunk.embeddings

    def _encode(self, chunk: MediaChunk) -> Embeddings:
        mtmd, begun = self._mtmd, time.perf_counter()
        if int(mtmd.mtmd_encode_chunk(self._context, chunk.pointer)):
            raise DecodeFailed("the projector could not encode an image or audio")
        self._encode_seconds.append(time.perf_counter() - begun)
        shape = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk.pointer)), self._size
        self.encoded += 1
        return np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._context), shape=shape).copy()

    def take_encode_seconds(self) -> list[float]:
        """How long each encoding since the last call took."""
        taken, self._encode_seconds = self._encode_seconds, []
        return taken

    def _keep(self, key: bytes, embeddings: Embeddings) -> None:
        if key not in self._kept:
            self._kept_bytes += embeddings.nbytes
        self._kept[key] = embeddings
        self._kept.move_to_end(key)
        while self._kept_bytes > _KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.nbytes

    def grid_positions(self, chunk: MediaChunk, first: int) -> npt.NDArray[np.int32]:
        """The four positions of each token, the first token being at position `first`, with a row for each kind."""
        count = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk.pointer))
        if int(self._mtmd.mtmd_input_chunk_get_type(chunk.pointer)) == AUDIO:
            line = np.arange(first, first + count, dtype=np.int32)
            return np.stack([line, line, line, np.zeros(count, np.int32)])
        found = (DecoderPosition * count)()
        image = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk.pointer)
        self._mtmd.mtmd_helper_image_get_decoder_pos(image, first, found)
        table = np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(ctypes.c_uint32)), shape=(count, 4))
        return np.ascontiguousarray(table[:, [0, 2, 1, 3]].T.astype(np.int32))

    def n_positions(self, chunk: MediaChunk) -> int:
        """How many positions its tokens take."""
        return int(self._mtmd.mtmd_input_chunk_get_n_pos(chunk.pointer))

    def _is_regular(self, chunk: MediaChunk) -> bool:
        """Whether `TokenPositions` and `StateFormat` know such positions: all tokens have one, and are in order by row
        and column, or each has its own; and the last one tells where the text after it continues.
        """
        positions, rows, columns = self.grid_positions(chunk, 0)[:3].astype(np.int64)
        places = rows << 32 | columns
        is_grid = not positions.any() and bool((places[1:] > places[:-1]).all())
        is_line = bool((positions == np.arange(len(positions))).all())
        end = max(positions[-1], rows[-1], columns[-1]) + 1
        return (is_grid or is_line) and end == self.n_positions(chunk)

    def set_whole(self, context: Any, *, is_whole: bool) -> None:
        """Let the tokens of the next steps attend to each other in both directions."""
        self._mtmd.llama_set_causal_attn(context, not is_whole)

    def close(self) -> None:
        self._mtmd.mtmd_free(self._context)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _self_test(self) -> None:
        """Read a picture and a text whose results are known. A function with other arguments, or a struct with other
        fields, gives something else. Raises `LibraryUnusable`.
        """
        mtmd = self._mtmd
        if "image" in self.kinds:
            bitmap = self._bitmap(_PICTURE)
            if bitmap is None:
                raise LibraryUnusable(f"cannot read images with {mtmd.path}: it cannot decode a BMP file")
            size = int(mtmd.mtmd_bitmap_get_n_bytes(bitmap))
            shape = int(mtmd.mtmd_bitmap_get_nx(bitmap)), int(mtmd.mtmd_bitmap_get_ny(bitmap))
            pixels = bytes(mtmd.mtmd_bitmap_get_data(bitmap)[:size]) if size == len(_PIXELS) else b""
            is_audio = bool(mtmd.mtmd_bitmap_is_audio(bitmap))
            mtmd.mtmd_bitmap_free(bitmap)
            if (shape, pixels, is_audio) != ((2, 2), _PIXELS, False):
                raise LibraryUnusable(f"cannot read images with {mtmd.path}: it decodes a known picture wrongly")
        wanted = InputText(b"ab" * 4, 1, False, True)  # only the first letter counts
        chunks = mtmd.mtmd_input_chunks_init()
        status = int(mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(wanted), None, 0))
        found = self._collect(chunks).tokens if not status else []
        mtmd.mtmd_input_chunks_free(chunks)
        room = (ctypes.c_int32 * 8)()
        vocab = lib.llama_model_get_vocab(self._model)
        count = int(lib.llama_tokenize(vocab, b"a", 1, room, 8, False, True))
        if found != room[:count]:
            raise LibraryUnusable(f"cannot read images with {mtmd.path}: it tokenises a known text wrongly")


def media_ids(key: bytes, size: int) -> list[int]:
    """Negative ids for the tokens of a chunk; -1 means no token in some places. Two chunks differ in nearly all ids."""
    words = hashlib.shake_128(key).digest(4 * size)
    return [-2 - (word % (_IDS - 2)) for word in np.frombuffer(words, np.uint32).tolist()]

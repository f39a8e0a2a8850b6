"""Zstandard compression of a quantiser's symbols as bytes. If the alphabet exceeds 256, all low bytes precede all high bytes.

    bytes   one Zstandard frame (RFC 8878) that states its content size

The bytes depend on the version of the library; the decoded values do not. The stage needs the package zstandard.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from psnode.codecs.arrays import Bytes, Codes
from psnode.codecs.bounds import check_integer
from psnode.codecs.stages import Lossless
from psnode.errors import CodecSpecError, PayloadError


@dataclass(frozen=True, repr=False)
class Zstd(Lossless):
    """+zstd:level=1. Higher levels gain little on nearly independent symbols and cost much time."""

    level: int = 1

    id = "zstd"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a level out of bounds, or if the package is missing."""
        check_integer(self, "level", 1, 22)
        if find_spec("zstandard") is None:
            raise CodecSpecError("the stage zstd needs the package zstandard: pip install zstandard")

    def max_nbytes(self, count: int, alphabet: int) -> int:
        """Return an upper bound of the frame's length: at least ZSTD_compressBound(n) for n bytes of symbols."""
        size = count if alphabet <= 256 else 2 * count
        return size + (size >> 8) + max(0, (1 << 17) - size >> 11) + 32

    def compress(self, codes: Codes, alphabet: int, out: Bytes) -> int:
        """Write one frame to `out`. Return its length in bytes."""
        import zstandard

        data = codes if alphabet <= 256 else np.concatenate([codes.astype(np.uint8), (codes >> 8).astype(np.uint8)])
        frame = zstandard.ZstdCompressor(level=self.level).compress(data.data)
        out[: len(frame)] = np.frombuffer(frame, np.uint8)
        return len(frame)

    def expand(self, data: Bytes, codes: Codes, alphabet: int) -> None:
        """Overwrite `codes` with the symbols of exactly one frame. Raises PayloadError."""
        import zstandard

        try:
            stated = zstandard.get_frame_parameters(data.data).content_size
            if stated != codes.nbytes:
                raise PayloadError(f"zstd: a frame of {stated} bytes where {codes.nbytes} belong")
            content = zstandard.ZstdDecompressor().decompress(data.data, codes.nbytes, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise PayloadError(f"zstd: {error}") from error
        symbols = np.frombuffer(content, np.uint8)
        if symbols.size != codes.nbytes:
            raise PayloadError(f"zstd: {symbols.size} bytes where {codes.nbytes} belong")
        if alphabet <= 256:
            codes[:] = symbols
        else:
            codes[:] = symbols[: codes.size] | symbols[codes.size :].astype(np.uint16) << 8
        if int(codes.max()) >= alphabet:
            raise PayloadError(f"zstd: symbol {int(codes.max())} in an alphabet of {alphabet}")

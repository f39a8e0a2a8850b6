"""A decoder of payloads in NumPy, written from the byte tables alone; it shares no code with psnode.

`read` covers the stages in READERS and EXPANDERS. A new codec adds a reader, in its own test module if the reader is long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tests.codecs.index_oracle import expand_randk, expand_selection, read_adacomp, read_entrywise

Array = np.ndarray
IDENTITY, FP16, BF16, SVD, QSGD = 1, 2, 3, 4, 5
ZSTD, ANS, RICE, CONTRACTIVE = 64, 65, 66, 96
ENTRYWISE, TOPK, RANDK, THRESHOLD, GRADDROP = 15, 16, 17, 18, 19
ADACOMP = 28


def header(data: bytes) -> tuple[list[int], tuple[int, ...], bytes]:
    """Return the stage numbers, the shape and the body of a payload."""
    version, count, ndim = data[:3]
    assert version == 1
    assert not any(data[3 + count : 8])
    return list(data[3 : 3 + count]), struct.unpack_from(f"<{ndim}I", data, 8), data[8 + 4 * ndim :]


def read(data: bytes) -> Array:
    """Return the decoded array, float32."""
    stages, shape, body = header(data)
    size = int(np.prod(shape, dtype=np.int64))
    scale = None
    if stages[0] == CONTRACTIVE:
        scale, stages, body = np.frombuffer(body[:4], "<f4")[0], stages[1:], body[4:]
    values = expand(stages, shape, body) if stages[0] in EXPANDERS else quantised(stages, size, body)
    values = values.astype(np.float32).reshape(shape)
    return values if scale is None else values * scale


def section(body: bytes) -> tuple[bytes, bytes]:
    """Return a length-prefixed section and the rest of the body."""
    (length,) = struct.unpack_from("<I", body)
    end = 4 + -(-length // 4) * 4
    assert not any(body[4 + length : end])
    return body[4 : 4 + length], body[end:]


def expand(stages: list[int], shape: tuple[int, ...], body: bytes) -> Array:
    side, rest = section(body)
    count, place = EXPANDERS[stages[0]](side, shape)
    if len(stages) == 1:
        values = np.frombuffer(rest, "<f4")
        assert values.size == count
    else:
        values = quantised(stages[1:], count, rest) if count else np.zeros(0, np.float32)
    return place(values)


def quantised(stages: list[int], size: int, body: bytes) -> Array:
    if len(stages) == 1:
        return READERS[stages[0]](body, size)
    side, rest = section(body)
    return SYMBOLS[stages[0]](side, symbols(stages[1], side, rest, size), size)


def symbols(stage: int, side: bytes, data: bytes, size: int) -> bytes:
    """Return the symbols of a lossless stage, low bytes first. ans and rice need the size of the alphabet, which `side`, the
    side information of qsgd, gives.
    """
    if stage == ZSTD:
        import zstandard

        return zstandard.decompress(data)
    from tests.codecs.symbols_oracle import read_ans, read_rice

    alphabet = 2 * int(np.frombuffer(side[:4], "<u4")[0]) + 1
    codes = {ANS: read_ans, RICE: read_rice}[stage](data, size, alphabet)
    rows = [codes % 256] if alphabet <= 256 else [codes % 256, codes // 256]
    return b"".join(row.astype(np.uint8).tobytes() for row in rows)


def read_identity(body: bytes, size: int) -> Array:
    values = np.frombuffer(body, "<f4")
    assert values.size == size
    return values


def read_fp16(body: bytes, size: int) -> Array:
    values = np.frombuffer(body, "<f2")
    assert values.size == size
    return values.astype(np.float32)


def read_bf16(body: bytes, size: int) -> Array:
    codes = np.frombuffer(body, "<u2").astype(np.uint32)
    assert codes.size == size
    return (codes << 16).view(np.float32)


def plane_widths(bits: int) -> list[int]:
    widths = []
    for width in (8, 8, 4, 2, 1):
        if width <= bits:
            widths.append(width)
            bits -= width
    return widths


def unpack_planes(data: bytes, size: int, bits: int) -> Array:
    """Return `size` codes of `bits` bits, stored in blocks of 512 codes, each block as bit planes."""
    codes, at = [], 0
    for start in range(0, size, 512):
        count = min(512, size - start)
        block, shift = np.zeros(count, np.int64), 0
        for width in plane_widths(bits):
            stride = -(-count * width // 8)
            plane = np.frombuffer(data, np.uint8, stride, at).astype(np.int64)
            parts = [(plane >> (width * k)) & (2**width - 1) for k in range(8 // width)]
            assert not np.concatenate(parts)[count:].any()
            block |= np.concatenate(parts)[:count] << shift
            at, shift = at + stride, shift + width
        codes.append(block)
    assert at == len(data)
    return np.concatenate(codes)


def qsgd_values(side: bytes, codes: Array, size: int) -> Array:
    levels, bucket = struct.unpack_from("<II", side)
    norms = np.frombuffer(side, "<f4", -(-size // bucket), 8)
    assert codes.size == size
    assert codes.max() <= 2 * levels
    signed, norm = (codes - levels).astype(np.float32), np.repeat(norms, bucket)[:size]
    ordinary = (norm == 0) | ((norm >= 2.0**-50) & (norm <= 2.0**50))
    largest = np.finfo(np.float32).max
    wide = np.clip(signed.astype(np.float64) * norm.astype(np.float64) / levels, -largest, largest)
    return np.where(ordinary, signed * (norm / np.float32(levels)), wide.astype(np.float32)).astype(np.float32)


def read_qsgd(body: bytes, size: int) -> Array:
    levels, bucket = struct.unpack_from("<II", body)
    end = 8 + 4 * -(-size // bucket)
    return qsgd_values(body[:end], unpack_planes(body[end:], size, (2 * levels).bit_length()), size)


def qsgd_symbols(side: bytes, data: bytes, size: int) -> Array:
    (levels,) = struct.unpack_from("<I", side)
    codes = np.frombuffer(data, np.uint8).astype(np.int64)
    return qsgd_values(side, codes if levels < 128 else codes[:size] + 256 * codes[size:], size)


def sixteen_symbols(reader: Callable[[bytes, int], Array]) -> Callable[[bytes, bytes, int], Array]:
    def values(side: bytes, data: bytes, size: int) -> Array:
        assert not side
        codes = np.frombuffer(data, np.uint8)
        return reader(np.stack([codes[size:], codes[:size]], axis=1).tobytes(), size)

    return values


def svd_expander(side: bytes, shape: tuple[int, ...]) -> tuple[int, Callable[[Array], Array]]:
    split, terms = struct.unpack("<HH", side)
    m, n = int(np.prod(shape[:split])), int(np.prod(shape[split:]))
    if not split:
        return m * n, lambda values: values

    def place(values: Array) -> Array:
        table = values.reshape(terms, m + n)
        total = np.zeros((m, n), np.float32)
        for row in table:
            total = total + np.outer(row[:m], row[m:]).astype(np.float32)
        return total

    return terms * (m + n), place


READERS: dict[int, Callable[[bytes, int], Array]] = {
    IDENTITY: read_identity,
    FP16: read_fp16,
    BF16: read_bf16,
    QSGD: read_qsgd,
    ENTRYWISE: read_entrywise,
    ADACOMP: read_adacomp,
}
SYMBOLS: dict[int, Callable[[bytes, bytes, int], Array]] = {
    QSGD: qsgd_symbols,
    FP16: sixteen_symbols(read_fp16),
    BF16: sixteen_symbols(read_bf16),
}
EXPANDERS: dict[int, Callable[[bytes, tuple[int, ...]], tuple[int, Callable[[Array], Array]]]] = {
    SVD: svd_expander,
    TOPK: expand_selection,
    RANDK: expand_randk,
    THRESHOLD: expand_selection,
    GRADDROP: expand_selection,
}

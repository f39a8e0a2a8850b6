"""Blosc: values come back bit for bit, the bytes do not depend on the number of threads, and damaged frames are refused or
harmless.
"""

from __future__ import annotations

import struct

import blosc
import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.payload import header_nbytes
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import VALUES, gaussian, recorded
from tests.codecs.golden_reader import header
from tests.codecs.golden_store import check_golden

KEY = Key((1, 2))
COMPRESSORS = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]


def read(data: bytes) -> np.ndarray:
    """Return the decompressed values of a payload, read by the library's own function, without psnode."""
    return np.frombuffer(blosc.decompress(header(data)[2]), "<f4")


@pytest.mark.parametrize("cname", COMPRESSORS)
@pytest.mark.parametrize("level", [0, 1, 9])
def test_every_bit_comes_back(cname: str, level: int) -> None:
    codec = get_codec(f"blosc:cname={cname},level={level}")
    assert codec.lossless
    for x in (gaussian(40_001), gaussian(1), *VALUES.values()):
        payload = codec.encode(x, KEY)
        np.testing.assert_array_equal(codec.decode(payload).view(np.uint32), x.view(np.uint32))
        np.testing.assert_array_equal(read(payload.to_bytes()).view(np.uint32), x.reshape(-1).view(np.uint32))


def test_gradients_shrink_a_little_and_zeros_a_lot() -> None:
    codec = get_codec("blosc")
    assert 0.81 <= codec.encode(gaussian(1 << 18), KEY).nbytes / (4 << 18) <= 0.95
    assert codec.encode(recorded(), KEY).nbytes / recorded().nbytes <= 0.25


def test_the_bytes_do_not_depend_on_how_many_threads_the_library_had() -> None:
    codec, x = get_codec("blosc"), gaussian(1 << 18)
    payload = codec.encode(x, KEY)
    for threads in (2, 4, 1):
        blosc.set_nthreads(threads)
        assert codec.encode(x, KEY) == payload


def test_golden_bytes() -> None:
    check_golden("blosc", "blosc", read, same_bytes=False)


@pytest.mark.parametrize("cname", COMPRESSORS)
def test_altered_frames_end_in_an_error_or_an_array_and_touch_nothing_else(cname: str) -> None:
    codec, x = get_codec(f"blosc:cname={cname}"), np.round(gaussian(3000), 1)
    data, rng = codec.encode(x, KEY).to_bytes(), np.random.default_rng(1)
    guarded, start = np.full(3000 + 2048, 7, np.float32), header_nbytes(1)
    for number in range(3000):
        changed = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            changed[rng.integers(start, start + 60 if number % 2 else len(data))] = rng.integers(256)
        try:
            codec.decode(Payload.from_bytes(bytes(changed)), guarded[1024:-1024])
        except PayloadError:
            continue
        finally:
            assert (guarded[:1024] == 7).all()
            assert (guarded[-1024:] == 7).all()


@pytest.mark.parametrize(("offset", "value"), [(4, 0), (4, 4004), (4, 2**31), (8, 0), (8, 2**31), (12, 0), (12, 17)])
def test_a_frame_of_another_size_is_refused(offset: int, value: int) -> None:
    data = bytearray(get_codec("blosc").encode(gaussian(1000), KEY).to_bytes())
    struct.pack_into("<I", data, header_nbytes(1) + offset, value)
    with pytest.raises(PayloadError, match="frame of"):
        get_codec("blosc").decode(Payload.from_bytes(bytes(data)))


@pytest.mark.parametrize("setting", ["level=-1", "level=10", "cname=gzip", "threads=2"])
def test_what_cannot_be_configured_is_refused(setting: str) -> None:
    with pytest.raises(CodecSpecError, match=setting.partition("=")[0]):
        get_codec(f"blosc:{setting}")

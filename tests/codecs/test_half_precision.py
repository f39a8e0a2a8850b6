"""fp16 and bf16 compared with NumPy's and torch's casts, on every code and on random bit patterns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from tests.codecs.family import gaussian

KEY = Key.derive(1)
LARGEST = {"fp16": 65504.0, "bf16": float(np.uint32(0x7F7F0000).view(np.float32))}


def patterns() -> np.ndarray:
    """Return a million finite random float32 bit patterns, edge cases of half precision, and all finite half-precision values."""
    drawn = np.random.default_rng(0).integers(0, 2**32, 1 << 20, dtype=np.uint32).view(np.float32)
    edges = [0, -0.0, 65504, 65519.996, 65520, 3.4028234e38, 2**-24, 2**-25, 1.5 * 2**-25, 2**-14, 2**-14 - 2**-25, 6.1e-5]
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    brains = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    x = np.concatenate([drawn, np.float32(edges), -np.float32(edges), halves, brains])
    return x[np.isfinite(x)]


def cast(name: str, x: np.ndarray) -> np.ndarray:
    """Return x rounded by NumPy or torch to half precision, to nearest even, and back in float32; values that overflow
    become the largest finite value.
    """
    with np.errstate(over="ignore"):
        if name == "fp16":
            rounded = x.astype(np.float16).astype(np.float32)
        else:
            rounded = torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy()
    return np.where(np.isinf(rounded), np.copysign(np.float32(LARGEST[name]), x), rounded)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_rounds_to_nearest_even_and_saturates(name: str) -> None:
    x = patterns()
    decoded = get_codec(name).decode(get_codec(name).encode(x, KEY))
    np.testing.assert_array_equal(decoded.view(np.uint32), cast(name, x).view(np.uint32))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_what_it_decodes_it_encodes_without_loss(name: str) -> None:
    codec = get_codec(name)
    once = codec.decode(codec.encode(patterns(), KEY))
    np.testing.assert_array_equal(codec.decode(codec.encode(once, KEY)).view(np.uint32), once.view(np.uint32))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("n", [1, 511, 1030])
def test_two_bytes_a_coordinate(name: str, n: int) -> None:
    assert get_codec(name).encode(gaussian(n), KEY).nbytes == 12 + 2 * n


@pytest.mark.parametrize(("name", "code"), [("fp16", 0x7C00), ("fp16", 0xFE01), ("bf16", 0x7F80), ("bf16", 0xFFFF)])
def test_infinity_and_nan_on_the_wire_are_refused(name: str, code: int) -> None:
    data = bytearray(get_codec(name).encode(gaussian(700), KEY).to_bytes())
    data[-2:] = code.to_bytes(2, "little")
    sums = np.ones(700, np.float32)
    for act in (lambda p: get_codec(name).decode(p), lambda p: get_codec(name).decode_add(p, sums)):
        with pytest.raises(PayloadError, match="not finite"):
            act(Payload.from_bytes(bytes(data)))
    np.testing.assert_array_equal(sums, np.ones(700, np.float32))

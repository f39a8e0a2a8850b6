"""Stored payloads of the one- and two-bit codecs: today's code writes the same bytes, and NumPy reads the same values.

REWRITE_GOLDEN=1 rewrites the payloads, as in test__golden.
"""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from tests.codecs.family import SHAPES, fed_back, gaussian
from tests.codecs.low_bit_oracle import read
from tests.codecs.test__golden import FOLDER, REWRITE, fixed_input

SPECS = {
    "sign": "sign",
    "scaledsign": "scaledsign",
    "scaledsign-buckets": "scaledsign:bucket=100",
    "onebit": "onebit",
    "terngrad": "terngrad",
    "terngrad-clipped": "terngrad:clip=2.5",
    "minmax": "minmax",
    "minmax-1": "minmax:bits=1",
    "minmax-8": "minmax:bits=8",
    "tbq": "tbq",
    "tbq-sparse": "tbq:tau=2",
}


def scaled_input() -> np.ndarray:
    """Return fixed_input without the values that would dominate a scale shared by the whole array."""
    x = fixed_input()
    x.reshape(-1)[1030:] = 0.25
    return x


@pytest.mark.parametrize("name", SPECS)
def test_golden_bytes(name: str) -> None:
    path, codec = FOLDER / f"{name}.bin", get_codec(SPECS[name])
    payload = codec.encode(scaled_input(), Key.derive(1, "golden"))
    if REWRITE:
        path.write_bytes(payload.to_bytes())
    stored = Payload.from_bytes(path.read_bytes())
    assert payload == stored
    np.testing.assert_array_equal(codec.decode(stored), read(stored.to_bytes()))


@pytest.mark.parametrize(
    "shape", [shape for shape in SHAPES if 0 not in shape] + [(8191,), (20480,), (20481,), (61441,)], ids=str
)
@pytest.mark.parametrize("spec", SPECS.values())
def test_numpy_reads_what_is_decoded(spec: str, shape: tuple[int, ...]) -> None:
    codec = get_codec(spec)
    x = gaussian(*shape)
    x.reshape(-1)[::3] = 0
    payload = codec.encode(x, Key.derive(4))
    np.testing.assert_array_equal(codec.decode(payload), read(payload.to_bytes()))


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30, 3e37])
@pytest.mark.parametrize("spec", SPECS.values())
def test_numpy_reads_what_is_decoded_at_any_scale(spec: str, scale: float) -> None:
    codec = get_codec(spec)
    payload = codec.encode((gaussian(700).astype(np.float64) * scale).astype(np.float32), Key.derive(4))
    np.testing.assert_array_equal(codec.decode(payload), read(payload.to_bytes()))


@pytest.mark.parametrize("spec", SPECS.values())
def test_behind_a_lossless_stage_the_values_are_the_same(spec: str) -> None:
    x = gaussian(50, 60)
    x[::4] = 0
    plain, chain = get_codec(spec), get_codec(f"{spec}+zstd")
    expected = plain.decode(plain.encode(x, Key.derive(4)))
    payload = chain.encode(x, Key.derive(4))
    np.testing.assert_array_equal(chain.decode(Payload.from_bytes(payload.to_bytes())), expected)
    assert payload.nbytes <= chain.max_nbytes(x.shape)


@pytest.mark.parametrize("spec", SPECS.values())
def test_behind_a_selector_the_kept_values_are_coded(spec: str) -> None:
    x = gaussian(50, 60)
    chain = get_codec(f"topk:ratio=0.1+{spec}")
    decoded = chain.decode(chain.encode(x, Key.derive(4)))
    kept = np.argsort(-np.abs(x).reshape(-1))[:300]
    assert np.isin(np.flatnonzero(decoded), kept).all()


@pytest.mark.parametrize("spec", [*SPECS.values(), "tbq:tau=0.01"])
def test_one_step_of_error_feedback_in_one_sweep_is_the_step_in_three(spec: str) -> None:
    codec = get_codec(spec)
    for size in (1, 700, 8192, 30_001):
        gradient, residual = gaussian(size), gaussian(size, seed=1)
        total = gradient + residual
        expected = codec.encode(total, Key.derive(4), error=total)
        assert fed_back(codec, gradient, Key.derive(4), residual) == expected
        np.testing.assert_array_equal(residual, total)

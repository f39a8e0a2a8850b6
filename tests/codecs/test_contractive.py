"""The contractive form: the point nearest to x on the line through 0 and Q(x)."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from tests.codecs.family import gaussian, student

SPECS = [
    "qsgd:levels=1",
    "qsgd",
    "qsgd:levels=2,bucket=7,norm=max",
    "qsgd:levels=300",
    "qsgd+zstd",
    "minmax",
    "dithered:step=0.25,bucket=512",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_decodes_c_times_what_the_wrapped_codec_decodes(spec: str, scale: float) -> None:
    x, codec, key = (student(3000) * scale).astype(np.float32), get_codec(spec), Key.derive(4)
    q = codec.decode(codec.encode(x, key)).astype(np.float64)
    c = np.dot(x, q) / np.dot(q, q)
    payload = codec.contractive().encode(x, key)
    assert payload.stages == ("contractive", *codec.stages)
    assert payload.body[:4].view("<f4")[0] == pytest.approx(c, rel=1e-6)
    assert payload.body[4:].tobytes() == codec.encode(x, key).body.tobytes()
    np.testing.assert_allclose(codec.contractive().decode(payload), c * q, rtol=2e-6)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [1, 7, 512, 3000])
def test_never_leaves_more_than_it_was_given(spec: str, n: int) -> None:
    """Check for every key that ||x - c Q|| <= ||x||, not only on average: the squared error is ||x||^2 (1 - cos^2), with the
    angle between x and Q.
    """
    codec = get_codec(spec).contractive()
    for seed in range(50):
        x = gaussian(n, seed=seed)
        error = np.empty_like(x)
        codec.encode(x, Key.derive(seed), error=error)
        assert np.linalg.norm(error.astype(np.float64)) <= np.linalg.norm(x.astype(np.float64)) * (1 + 1e-6)


def test_the_unbiased_form_explodes_where_the_contractive_form_does_not() -> None:
    """Check that the residual of QSGD with one level, whose omega is about 17 on a normal bucket of 512, explodes. The
    residual of the contractive form stays below 150, which is about its length after 40 steps if nothing is sent.
    """
    lengths = {}
    for name, codec in {"unbiased": get_codec("qsgd:levels=1"), "contractive": get_codec("contractive(qsgd:levels=1)")}.items():
        residual = np.zeros(512, np.float32)
        for step in range(40):
            residual += gaussian(512, seed=step)
            codec.encode(residual, Key.derive(step), error=residual)
        lengths[name] = np.linalg.norm(residual)
    assert lengths["contractive"] < 150
    assert lengths["unbiased"] > 1e5


def test_lossless_and_biased_codecs_are_their_own_contractive_form() -> None:
    for spec in ("identity", "fp16", "bf16", "fp16+zstd"):
        assert get_codec(spec).contractive() == get_codec(spec)
        assert get_codec(f"contractive({spec})") == get_codec(spec)


def test_zero_is_coded_as_zero() -> None:
    codec = get_codec("contractive(qsgd)")
    payload = codec.encode(np.zeros(700, np.float32), Key.derive(1))
    assert payload.body[:4].view("<f4")[0] == 0
    np.testing.assert_array_equal(codec.decode(payload), np.zeros(700, np.float32))


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000])
def test_a_scale_that_is_not_finite_is_refused(bits: int) -> None:
    codec = get_codec("contractive(qsgd)")
    data = bytearray(codec.encode(gaussian(10), Key.derive(1)).to_bytes())
    data[12:16] = bits.to_bytes(4, "little")
    with pytest.raises(PayloadError, match="the scale is"):
        codec.decode(Payload.from_bytes(bytes(data)))
    with pytest.raises(PayloadError, match="ends inside the scale"):
        codec.decode(Payload.from_bytes(bytes(data[:14])))

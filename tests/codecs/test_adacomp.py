"""AdaComp compared with the paper's algorithms in NumPy: the sent values, their form, and the residual."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.adacomp import AdaComp
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Subtracted
from psnode.codecs.sources import Accumulated
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError
from psnode.feedback import get_feedback
from tests.codecs.family import fed_back, gaussian, recorded, student
from tests.codecs.golden_reader import read
from tests.codecs.golden_store import check_golden
from tests.feedback.stream import SIZE, gradients

KEY = Key.derive(0)
Array = np.ndarray


def papers(residual: Array, g: Array, length: int) -> tuple[Array, Array, float]:
    """Take a step of the paper's algorithm 2 in float32. Return the sent values, the residual, and the scale divided by the
    mean magnitude of the sent entries.
    """
    total = residual + g
    lifted = total + g
    largest = [np.abs(total[at : at + length]).max() for at in range(0, total.size, length)]
    scale = np.float32(sum(map(float, largest)) / len(largest))
    chosen = np.zeros(total.size, bool)
    for number, top in enumerate(largest):
        bin_ = slice(number * length, (number + 1) * length)
        chosen[bin_] = np.abs(lifted[bin_]) >= top
    sent = np.where(chosen, np.sign(total) * scale, np.float32(0)).astype(np.float32)
    taken = np.abs(total[sent != 0].astype(np.float64))
    return sent, total - sent, float(scale) / taken.mean() if taken.size else 0.0


def test_the_lengths_are_the_papers_and_the_scheme_has_error_feedback() -> None:
    codec, scheme = get_codec("adacomp"), resolve(Config(scheme="adacomp"))
    assert codec == AdaComp(length=None) == get_codec(scheme.codec) == codec.contractive()
    assert scheme.feedback.startswith("ef")
    assert (codec.sparse, codec.shaped, codec.unbiased, codec.traits.newest) == (True, True, False, True)
    for shape, length in (((20, 5, 5, 5), 50), ((60, 6, 9), 50), ((60, 54), 500), ((3240,), 500)):
        x = student(*shape)
        assert codec.encode(x, KEY) == get_codec(f"adacomp:length={length}").encode(x, KEY), shape


@pytest.mark.parametrize("text", ["length=0", "length=16385", "length=2.5", "length=-3", "bins=4"])
def test_parameters_out_of_bounds_are_one_typed_line(text: str) -> None:
    with pytest.raises(CodecSpecError) as caught:
        get_codec(f"adacomp:{text}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [1, 7, 50, 500, 16384])
def test_200_steps_of_a_recorded_stream_are_those_of_the_paper_bit_for_bit(length: int) -> None:
    """Compare sent values and residuals over 200 steps of error feedback. The bound on the scale, which the paper does not
    have, has no effect here.
    """
    rule, codec = get_feedback("ef"), get_codec(f"adacomp:length={length}")
    state, residual, shares = rule.init(SIZE), np.zeros(SIZE, np.float32), []
    for step, g in enumerate(gradients(200)):
        expected, residual, excess = papers(residual, g, length)
        assert excess < 1.75
        sent = read(rule.push(g, state, codec, Key.derive(step)).to_bytes())
        assert np.array_equal(sent, expected), step
        assert np.array_equal(state["residual"], residual), step
        shares.append(np.count_nonzero(sent) / np.count_nonzero(residual + sent))
    assert length == 1 or 0 < np.mean(shares) < 0.5


@pytest.mark.parametrize("length", [7, 50, 500, 3000])
@pytest.mark.parametrize("size", [1, 49, 50, 51, 2049, 70_001])
def test_parts_in_any_division_are_the_gradient_of_the_paper(size: int, length: int) -> None:
    """Check that a gradient given in parts is coded like the paper's gradient. The parts leave gaps, split bins, and lie at
    any address.
    """
    residual, g, codec = student(size, seed=1), student(size, seed=2), get_codec(f"adacomp:length={length}")
    cuts = sorted({0, size, *(int(cut) for cut in np.random.default_rng(size).integers(0, size, 9))})
    parts = [(a, g[a:b].copy()) for number, (a, b) in enumerate(pairwise(cuts)) if number % 4 != 2]
    held = np.zeros(size, bool)
    for place, part in parts:
        held[place : place + part.size] = True
    expected, left, excess = papers(residual, np.where(held, g, np.float32(0)), length)
    mine = residual.copy()
    sent = codec.decode(codec.encode(Accumulated(parts, mine), KEY, sink=Subtracted(mine)))
    if excess > 1.75:  # the scale is limited, and the rest is unchanged
        assert np.array_equal(np.sign(sent), np.sign(expected))
    else:
        assert np.array_equal(sent, expected)
        assert np.array_equal(mine, left)


@pytest.mark.parametrize("name", ["gaussian", "student", "recorded"])
def test_an_array_alone_is_new_as_a_whole(name: str) -> None:
    """Check that an array without a residual counts as a new gradient: H = 2 x, so values of at least half the maximum of
    their bin are sent.
    """
    x = {"gaussian": gaussian(40, 60), "student": student(40, 60), "recorded": recorded()}[name]
    expected, left, excess = papers(np.zeros(x.size, np.float32), x.reshape(-1), 50)
    assert excess < 1.75
    error = np.empty_like(x)
    payload = get_codec("adacomp:length=50").encode(x, KEY, error=error)
    assert np.array_equal(get_codec("adacomp").decode(payload).reshape(-1), expected)
    assert np.array_equal(error.reshape(-1), left)


def test_a_few_large_bins_do_not_make_coding_add_energy() -> None:
    """Check that the scale is bounded, where the paper's rule would add energy: one bin has a value of 1000, and 19 bins
    have 50 entries near 1. The mean of the bins' maxima, 51, is 50 times as large as most of the sent values.
    """
    x = np.concatenate([np.float32([1000] + [0] * 49), 1 + np.abs(gaussian(950)) / 100])
    expected, _, excess = papers(np.zeros(1000, np.float32), x, 50)
    assert excess > 20
    assert np.sum((x - expected).astype(float) ** 2) > 2 * np.sum(x.astype(float) ** 2)
    found = get_codec("adacomp:length=50").decode(get_codec("adacomp:length=50").encode(x, KEY))
    assert np.array_equal(found != 0, expected != 0)
    sent = np.abs(x[expected != 0].astype(np.float64))
    assert np.unique(found[found != 0]) == pytest.approx(1.75 * sent.mean(), rel=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_the_energy_shrinks_by_what_the_bound_on_the_scale_promises(seed: int) -> None:
    """Check that k sent entries of mean magnitude a remove the energy that follows from the bounded scale (at least 7/16 k
    a^2), if the scales of bins differ by up to 10^8.
    """
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((40, 50)) * 10.0 ** rng.uniform(-4, 4, (40, 1))).astype(np.float32).reshape(-1)
    decoded = get_codec("adacomp:length=50").decode(get_codec("adacomp:length=50").encode(x, KEY))
    exact, sent = x.astype(np.float64), np.abs(x[decoded != 0].astype(np.float64))
    removed = np.sum(exact**2) - np.sum((exact - decoded) ** 2)
    least = min(np.mean(np.abs(x).reshape(40, 50).max(1), dtype=np.float64), 1.75 * sent.mean())  # the scale
    assert removed == pytest.approx(sent.size * (2 * sent.mean() * least - least**2), rel=1e-5)
    assert removed > 0


def test_zeros_are_never_sent_not_even_where_the_gradient_cancels_the_residual() -> None:
    residual, g = np.float32([4, -3, 0, 1] * 500), np.float32([-4, 3, 0, 1] * 500)
    mine = residual.copy()
    payload = get_codec("adacomp").encode(Accumulated([(0, g)], mine), KEY, sink=Subtracted(mine))
    assert set(get_codec("adacomp").support(payload) % 4) == {3}
    for x in (np.zeros(700, np.float32), np.full(700, -0.0, np.float32)):
        assert get_codec("adacomp").support(get_codec("adacomp").encode(x, KEY)).size == 0


def test_the_bytes_are_those_of_the_set_one_bit_an_entry_and_the_scale() -> None:
    """Check a payload's size: log2 of the number of possible sets (within 3 %, for a random set), a bit per entry, the
    scale, and 13 bytes of lengths and padding.
    """
    x = gaussian(512, 256)
    payload = get_codec("adacomp").encode(x, KEY)
    count = get_codec("adacomp").support(payload).size
    least = (math.lgamma(x.size + 1) - math.lgamma(count + 1) - math.lgamma(x.size - count + 1)) / math.log(2)
    assert (least + count) / 8 <= payload.nbytes - 16 <= (1.03 * least + count) / 8 + 13 + 16


def test_many_entries_are_found_in_several_scans() -> None:
    """Check an array whose entries all reach half the maximum of their bin: the list of entries grows from 1/64 of the array
    to all of it.
    """
    x = (1 + np.abs(gaussian(300_000)) / 20).astype(np.float32) * np.sign(gaussian(300_000, seed=3)).astype(np.float32)
    residual = x * np.float32(0.25)
    decoded = get_codec("adacomp").decode(get_codec("adacomp").encode(x, KEY))
    expected, _, _ = papers(np.zeros(x.size, np.float32), x, 500)
    assert np.array_equal(decoded, expected)
    expected, left, _ = papers(residual, x, 500)
    payload = fed_back(get_codec("adacomp"), x, KEY, residual)
    assert np.array_equal(get_codec("adacomp").decode(payload), expected)
    assert np.array_equal(residual, left)


@pytest.mark.parametrize("index", [0, 2047, 2048, 69_999])
def test_a_sum_that_is_not_finite_is_named(index: int) -> None:
    g, residual = gaussian(70_000), gaussian(70_000, seed=2)
    g[index] = residual[index] = 3e38
    with pytest.raises(NonFiniteGradientError) as caught:
        get_codec("adacomp").encode(Accumulated([(0, g)], residual), KEY, sink=Subtracted(residual))
    assert caught.value.index == index


def alter(name: str) -> bytes:
    """Return a damaged payload in which one of 40 entries is sent."""
    x = np.zeros(40, np.float32)
    x[7] = -2
    data = bytearray(get_codec("adacomp").encode(x, KEY).to_bytes())
    assert len(data) == 12 + 4 + 4 + 8 + 1
    match name:
        case "no scale":
            data[12:16] = bytes(4)
        case "a negative scale":
            data[12:16] = struct.pack("<f", -1)
        case "an infinite scale":
            data[12:16] = struct.pack("<f", math.inf)
        case "no number":
            data[12:16] = struct.pack("<f", math.nan)
        case "a second sign":
            data[-1] |= 2
        case "more signs":
            data += b"\0"
        case "no signs":
            del data[-1]
        case "an empty body":
            del data[12:]
        case "a scale of nothing":
            data = bytearray(get_codec("adacomp").encode(np.zeros(40, np.float32), KEY).to_bytes())
            data[12:16] = struct.pack("<f", 1)
        case "a scale of minus nothing":
            data = bytearray(get_codec("adacomp").encode(np.zeros(40, np.float32), KEY).to_bytes())
            data[15] = 0x80
    return bytes(data)


WRONG = [
    "no scale", "a negative scale", "an infinite scale", "no number", "a second sign", "more signs", "no signs", "an empty body",
    "a scale of nothing", "a scale of minus nothing",
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_no_encoder_writes_is_refused_and_nothing_added(name: str) -> None:
    payload, out = Payload.from_bytes(alter(name)), np.zeros(40, np.float32)
    for call in (codec_decode, codec_add, lambda p, o: get_codec("adacomp").measure(p)):
        with pytest.raises(PayloadError):
            call(payload, out)
    assert not out.any()


def codec_decode(payload: Payload, out: Array) -> None:
    get_codec("adacomp").decode(payload)


def codec_add(payload: Payload, out: Array) -> None:
    get_codec("adacomp").decode_add(payload, out)


@pytest.mark.parametrize(("name", "spec"), [("adacomp", "adacomp"), ("adacomp-7", "adacomp:length=7")])
def test_golden_bytes(name: str, spec: str) -> None:
    check_golden(name, spec, read)

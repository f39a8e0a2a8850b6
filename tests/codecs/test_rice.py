"""rice compared with its length formula and an independent reader, on every kind of histogram and on random bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from psnode.codecs import get_codec
from psnode.codecs.entropy.rice import Rice
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from tests.codecs.family import gaussian
from tests.codecs.lossless import Guarded, drawn, geometric, histograms
from tests.codecs.symbols_oracle import entropy, read_rice

coded, expand = Guarded(Rice()).coded, Guarded(Rice()).expand


@settings(max_examples=250, deadline=None)
@given(histograms())
def test_every_histogram_comes_back(case: tuple[np.ndarray, int]) -> None:
    coded(*case)


@settings(max_examples=60, deadline=None)
@given(histograms())
def test_an_independent_reader_agrees(case: tuple[np.ndarray, int]) -> None:
    codes, alphabet = case[0][:5000], case[1]
    np.testing.assert_array_equal(read_rice(coded(codes, alphabet).tobytes(), codes.size, alphabet), codes)


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.8, 0.95])
def test_the_length_is_that_of_the_best_golomb_rice_code(ratio: float) -> None:
    """Compare the coded length with the least textbook length over all k, for symbols ranked by frequency."""
    codes = drawn(geometric(120, ratio), 100_000)
    counts = np.sort(np.bincount(codes))[::-1]
    ranks, width = np.arange(counts.size), int(counts[counts > 0].size - 1).bit_length()
    lengths = []
    for k in range(12):
        each = np.where(ranks >> k < 16, (ranks >> k) + 1 + k, 16 + width)
        lengths.append(int(counts @ each))
    assert coded(codes, 120).size - min(lengths) / 8 == pytest.approx(8 + np.count_nonzero(counts), abs=8)


@pytest.mark.parametrize("ratio", [0.5, 0.75, 0.9, 0.97])
def test_geometric_symbols_cost_at_most_four_percent_more_than_their_entropy(ratio: float) -> None:
    """Check the bound that follows from Gallager and van Voorhis, 1975: the best Golomb code loses little, and powers of two
    lose a little more.
    """
    codes = drawn(geometric(250, ratio), 1 << 18)
    assert 8 * coded(codes, 250).size <= 1.04 * codes.size * entropy(codes) + 8 * 300


@pytest.mark.parametrize(("alphabet", "bits"), [(32, 5), (256, 8), (65536, 16)])
def test_what_cannot_be_compressed_is_packed(alphabet: int, bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, alphabet, 51_200)
    assert coded(codes, alphabet).size == 4 + codes.size * bits // 8 == Rice().max_nbytes(codes.size, alphabet)


def cases() -> list[tuple[np.ndarray, int]]:
    return [
        (drawn(geometric(9, 0.5), 700), 9),
        (drawn(geometric(300, 0.9), 3000), 300),
        (drawn(geometric(100, 0.8), 5000), 100),
        (np.where(np.arange(9000) % 700 == 3, 200, drawn(geometric(40, 0.3), 9000)), 201),
        (drawn(np.ones(7), 600), 7),
    ]


@pytest.mark.parametrize("case", range(5))
def test_every_byte_altered_ends_in_an_error_or_codes_of_the_alphabet(case: int) -> None:
    codes, alphabet = cases()[case]
    data = coded(codes, alphabet)
    rng = np.random.default_rng(case)
    for number in range(1500):
        changed = data.copy()
        at = int(rng.integers(min(40, data.size))) if number % 2 else int(rng.integers(data.size))
        changed[at] = rng.integers(256)
        try:
            found = expand(changed, codes.size, alphabet)
        except PayloadError:
            continue
        assert found.max() < alphabet


@pytest.mark.parametrize("case", range(5))
def test_cut_longer_or_other_numbers_are_refused(case: int) -> None:
    codes, alphabet = cases()[case]
    data = coded(codes, alphabet)
    for length in [*range(min(data.size, 80)), *range(80, data.size, 37)]:
        with pytest.raises(PayloadError):
            expand(data[:length], codes.size, alphabet)
    for extra in (1, 2, 4):
        with pytest.raises(PayloadError):
            expand(np.concatenate([data, np.zeros(extra, np.uint8)]), codes.size, alphabet)
    for count in (1, codes.size - 1, codes.size + 1, 2 * codes.size):
        if case < 4:
            with pytest.raises(PayloadError):
                expand(data, count, alphabet)


@pytest.mark.parametrize(("parameter", "valid"), [(14, True), (15, True), (16, False), (17, False)])
def test_a_parameter_above_fifteen_is_refused(parameter: int, valid: bool) -> None:
    """Check valid and refused parameters k. The payload codes the most frequent symbol seven times, each as 1 + k zero bits."""
    bits = 7 * (1 + parameter)
    words = np.array([bits, parameter << 16, 9, *[0] * -(-bits // 32)], np.uint32)
    if valid:
        assert expand(words.view(np.uint8), 7, 300).tolist() == [9] * 7
    else:
        with pytest.raises(PayloadError, match=f"k={parameter}"):
            expand(words.view(np.uint8), 7, 300)


def test_the_chain_decodes_what_the_quantiser_alone_decodes() -> None:
    x = gaussian(5001)
    for spec in ("qsgd", "qsgd:levels=300", "nuqsgd", "natural", "dithered", "terngrad"):
        plain, chain = get_codec(spec), get_codec(f"{spec}+rice")
        payload = chain.encode(x, Key.derive(5))
        np.testing.assert_array_equal(chain.decode(payload), plain.decode(plain.encode(x, Key.derive(5))))

"""ans compared with the entropy and an independent reader, on every kind of histogram and on random bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnode.codecs import get_codec
from psnode.codecs.base import readonly
from psnode.codecs.entropy import ans_model as model
from psnode.codecs.entropy.ans import Ans
from psnode.codecs.entropy.ans_sections import MAX_SECTIONS, choose_sections
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from tests.codecs.family import gaussian, recorded
from tests.codecs.lossless import Guarded, drawn, geometric, histograms
from tests.codecs.symbols_oracle import entropy, read_ans

coded, expand = Guarded(Ans()).coded, Guarded(Ans()).expand

# every histogram


@pytest.mark.long
@settings(max_examples=250, deadline=None)
@given(histograms())
def test_every_histogram_comes_back(case: tuple[np.ndarray, int]) -> None:
    coded(*case)


@settings(max_examples=60, deadline=None)
@given(histograms())
def test_an_independent_reader_agrees(case: tuple[np.ndarray, int]) -> None:
    codes, alphabet = case[0][:20_000], case[1]
    np.testing.assert_array_equal(read_ans(coded(codes, alphabet).tobytes(), codes.size, alphabet), codes)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16, 17, 16_383, 16_384, 16_385, 16_386, 65_537])
def test_every_length_of_the_last_section_comes_back(count: int) -> None:
    coded(drawn(geometric(9, 0.5), count), 9)


# length


@pytest.mark.parametrize("spec", ["qsgd", "qsgd:levels=1", "qsgd:levels=3,norm=max", "qsgd:levels=255", "nuqsgd", "natural"])
def test_within_two_percent_of_the_entropy_of_the_symbols(spec: str) -> None:
    for x in (gaussian(1 << 18), np.tile(recorded().reshape(-1), 40)):
        symbols = get_codec(spec)._symbols(readonly(x), np.array([1, 2], np.uint64))
        bits = 8 * coded(symbols.codes, symbols.alphabet).size / symbols.codes.size
        assert bits <= 1.02 * entropy(symbols.codes) + 8 * 300 / symbols.codes.size


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.6, 0.9, 0.97, 0.99])
@pytest.mark.parametrize("alphabet", [3, 31, 200, 1000])
def test_within_two_percent_of_the_entropy_of_geometric_symbols(alphabet: int, ratio: float) -> None:
    codes = drawn(geometric(alphabet, ratio), 1 << 18)
    assert 8 * coded(codes, alphabet).size <= 1.02 * codes.size * entropy(codes) + 8 * (100 + alphabet)


def test_a_change_of_statistics_starts_a_new_table() -> None:
    sparse, dense = drawn(geometric(20, 0.05), 1 << 17), drawn(np.ones(20), 1 << 17)
    bits = 8 * coded(np.concatenate([sparse, dense]), 20).size
    apart = sparse.size * entropy(sparse) + dense.size * entropy(dense)
    assert apart <= bits <= 1.01 * apart
    assert bits <= 0.9 * 2 * sparse.size * entropy(np.concatenate([sparse, dense]))


def test_equal_statistics_share_a_table() -> None:
    for seed in range(20):
        codes = drawn(geometric(31, 0.6), 1 << 18, seed).astype(np.uint8)
        assert len(choose_sections(codes, 31)) == 1


def test_every_piece_may_have_a_table() -> None:
    codes = np.concatenate([drawn(np.eye(7)[seed % 7] + 0.02, 4096, seed) for seed in range(70)])
    assert 40 <= len(choose_sections(codes.astype(np.uint8), 7)) <= MAX_SECTIONS
    coded(codes, 7)


@pytest.mark.parametrize("alphabet", [2, 200, 65536])
def test_one_symbol_alone_costs_nothing_but_a_table(alphabet: int) -> None:
    assert coded(np.full(300_000, alphabet - 1), alphabet).size <= 64 + 2 * alphabet // 255


@pytest.mark.parametrize(("alphabet", "bits"), [(2, 1), (32, 5), (256, 8), (65536, 16)])
def test_what_cannot_be_compressed_is_packed(alphabet: int, bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, alphabet, 51_200)
    assert coded(codes, alphabet).size == 4 + codes.size * bits // 8 == Ans().max_nbytes(codes.size, alphabet)


def test_rare_symbols_are_escaped() -> None:
    codes = drawn(geometric(8, 0.5), 1 << 16)
    rare = np.random.default_rng(1).choice(codes.size, 50, replace=False)
    codes[rare] = np.random.default_rng(2).integers(100, 65536, 50)
    bits = 8 * coded(codes, 65536).size
    assert bits <= codes.size * entropy(np.minimum(codes, 100)) + 50 * 20 + 8 * 400


# the model


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 2**31 - 1))
def test_logarithms_in_integers_are_logarithms(n: int) -> None:
    assert model._log2(n) / 2**24 == pytest.approx(math.log2(n), abs=2e-7)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 2**28), min_size=1, max_size=4096))
def test_frequencies_add_up_and_none_is_zero(weights: list[int]) -> None:
    result = np.empty(len(weights), np.int64)
    model.frequencies(np.array(weights), result)
    assert result.sum() == model.TOTAL
    assert result.min() >= 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 2**27), min_size=1, max_size=100))
def test_weight_bytes_keep_four_digits(counts: list[int]) -> None:
    given_counts = np.array(counts)
    octets, weights = np.empty(given_counts.size, np.uint8), np.empty(given_counts.size, np.int64)
    model.weight_bytes(given_counts, octets)
    model.weights_of(octets, weights)
    shares = given_counts / given_counts.max() * (31 << 11)
    assert np.all((np.abs(weights / shares - 1) <= 1 / 30) | (np.abs(weights - shares) <= 16))


# random bytes


def cases() -> list[tuple[np.ndarray, int]]:
    return [
        (drawn(geometric(9, 0.5), 700), 9),
        (drawn(geometric(9, 0.5), 20_001), 9),
        (drawn(geometric(300, 0.9), 3000), 300),
        (np.concatenate([drawn(geometric(5, 0.1), 16_384), drawn(np.ones(5), 16_384)]), 5),
        (np.where(np.arange(20_000) % 7000 == 3, 200, drawn(geometric(4, 0.3), 20_000)), 201),
        (drawn(np.ones(7), 600), 7),
    ]


@pytest.mark.parametrize("case", range(6))
def test_every_byte_altered_ends_in_an_error_or_codes_of_the_alphabet(case: int) -> None:
    codes, alphabet = cases()[case]
    data = coded(codes, alphabet)
    rng = np.random.default_rng(case)
    refused = 0
    for number in range(1500):
        changed = data.copy()
        at = int(rng.integers(min(64, data.size))) if number % 2 else int(rng.integers(data.size))
        changed[at] = rng.integers(256)
        try:
            found = expand(changed, codes.size, alphabet)
        except PayloadError:
            refused += 1
        else:
            assert found.max() < alphabet
    assert refused or 8 * (data.size - 4) >= codes.size * math.floor(math.log2(alphabet))


@pytest.mark.parametrize("case", range(6))
def test_cut_or_longer_bytes_are_refused(case: int) -> None:
    codes, alphabet = cases()[case]
    data = coded(codes, alphabet)
    for length in [*range(min(data.size, 80)), *range(80, data.size, 37)]:
        with pytest.raises(PayloadError):
            expand(data[:length], codes.size, alphabet)
    for count in (1, 2, 4):
        with pytest.raises(PayloadError):
            expand(np.concatenate([data, np.zeros(count, np.uint8)]), codes.size, alphabet)


@pytest.mark.parametrize("case", range(5))
def test_another_number_of_codes_is_refused(case: int) -> None:
    codes, alphabet = cases()[case]
    data = coded(codes, alphabet)
    for count in (1, codes.size - 1, codes.size + 1, 2 * codes.size):
        with pytest.raises(PayloadError):
            expand(data, count, alphabet)


def test_a_state_that_was_altered_is_noticed() -> None:
    codes, alphabet = cases()[0]
    data = coded(codes, alphabet)
    first = 4 + -(-int(data[:4].view(np.uint32)[0]) // 4) * 4
    for lane in range(8):
        changed = data.copy()
        changed[first + 4 * lane + 1] ^= 1
        with pytest.raises(PayloadError):
            expand(changed, codes.size, alphabet)


@pytest.mark.long
def test_the_chain_decodes_what_the_quantiser_alone_decodes() -> None:
    x = gaussian(50_001)
    for spec in ("qsgd", "qsgd:levels=300", "nuqsgd", "natural", "dithered", "dithered:step=0.04,bucket=512", "terngrad"):
        plain, chain = get_codec(spec), get_codec(f"{spec}+ans")
        payload = chain.encode(x, Key.derive(5))
        np.testing.assert_array_equal(chain.decode(payload), plain.decode(plain.encode(x, Key.derive(5))))
        assert payload.nbytes < plain.encode(x, Key.derive(5)).nbytes

"""Sets of indices compared with a reader in plain Python and with log2 binomial; invalid bytes are refused.

The length of random sets varies. The bounds hold for all seeds tried. Besides the 5 bytes of the head they leave 8 bytes,
about 4 standard deviations of the length of the shortest sets.
"""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psnode.codecs.selection import gaps, indices
from psnode.errors import PayloadError
from tests.codecs.golden_store import FOLDER, REWRITE
from tests.codecs.index_oracle import log2_binomial, read_set

SIZES = [1, 2, 3, 7, 8, 9, 63, 64, 65, 100, 511, 1000, 4096, 10007]
DENSITIES = [0, 0.001, 0.01, 0.05, 0.1, 0.124, 0.13, 0.2, 0.25, 0.3, 0.38, 0.45, 0.499, 0.5, 0.501, 0.62, 0.9, 0.99, 1]


def clusters(size: int, seed: int = 0) -> np.ndarray:
    """Return the members of a clustered set, like the large entries of a gradient: of each run of 1000 indices, no index or
    one in 300, 30 or 3.
    """
    rng = np.random.default_rng(seed)
    density = rng.choice([0.0, 1 / 300, 1 / 30, 1 / 3], p=[0.6, 0.2, 0.15, 0.05], size=-(-size // 1000)).repeat(1000)[:size]
    return np.flatnonzero(rng.random(size) < density).astype(np.uint32)


def random_set(size: int, count: int, seed: int = 0) -> np.ndarray:
    chosen = np.random.default_rng([seed, size, count]).permutation(size)[:count]
    return np.sort(chosen).astype(np.uint32)


def written(members: np.ndarray, size: int) -> np.ndarray:
    """Return the coded set, written to a buffer of exactly the promised size that held other bytes before."""
    buffer = np.full(indices.max_nbytes(members.size, size), 0xA5, np.uint8)
    return buffer[: indices.write(members, size, buffer)]


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("size", SIZES)
def test_a_set_is_what_a_reader_in_plain_python_and_our_own_find(size, density):
    members = random_set(size, round(density * size))
    data = written(members, size)
    assert np.array_equal(read_set(data.tobytes(), size), members)
    found = indices.read(data, size)
    assert found.dtype == np.uint32
    assert np.array_equal(found, members)
    assert indices.count(data, size) == members.size


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 20), st.floats(0, 1), st.floats(0.5, 1), st.integers(0, 1000))
@example(20, 0.0, 1.0, 0)
@example(20, 1.0, 1.0, 0)
@example(20, 0.5, 1.0, 0)
@example(20, 0.38, 1.0, 0)
@example(20, 1e-6, 1.0, 0)
def test_any_random_set_comes_back_and_takes_log2_binomial_bits_within_3_percent(exponent, density, part, seed):
    size = max(1, round(part * 2**exponent))
    members = random_set(size, round(density * size), seed)
    data = written(members, size)
    assert np.array_equal(indices.read(data, size), members)
    assert data.size <= 1.03 * log2_binomial(size, members.size) / 8 + 5 + 8


@pytest.mark.parametrize("density", [0.001, 0.003, 0.01, 0.03, 0.1, 0.124, 0.126, 0.2, 0.3, 0.38, 0.45, 0.5, 0.7, 0.9, 0.999])
def test_long_sets_take_log2_binomial_bits_within_2_percent(density):
    size = 1 << 20
    members = random_set(size, round(density * size))
    assert written(members, size).size <= 1.02 * log2_binomial(size, members.size) / 8


def test_a_tenth_of_a_percent_costs_11_and_a_half_bits_an_index_and_one_percent_8_and_an_eighth():
    for density, bits in ((0.001, 11.55), (0.01, 8.15)):
        members = random_set(1 << 22, round(density * 2**22))
        assert 8 * written(members, 1 << 22).size <= bits * members.size


@pytest.mark.parametrize(("size", "count"), [(s, k) for s in (64, 1000, 4096) for k in (1, 2, 7, 31, 100, 400, 2000) if k <= s])
def test_no_set_takes_more_than_max_nbytes(size, count):
    """Check the sets that are worst for Golomb-Rice codes: gaps that are (multiples of) a power of two, sets at one end, and
    clusters.
    """
    step = size // count
    power = 1 << (step.bit_length() - 1)
    for members in (
        np.arange(count),
        np.arange(size - count, size),
        np.arange(count) * step,
        np.arange(count) * step + step - 1,
        np.minimum(np.arange(1, count + 1) * power - 1, size - count + np.arange(count)),
        np.concatenate([np.arange(count // 2), np.arange(size - (count - count // 2), size)]),
    ):
        data = written(members.astype(np.uint32), size)
        assert np.array_equal(indices.read(data, size), members)
        assert data.size <= indices.max_nbytes(count, size)
        for fewer in range(0, count, max(1, count // 5)):
            assert written(members[:fewer].astype(np.uint32), size).size <= indices.max_nbytes(count, size)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [3000, 100_000, 1_000_003])
def test_clusters_take_fewer_bits_than_any_code_of_the_density_alone(size, seed):
    members = clusters(size, seed)
    data = written(members, size)
    assert np.array_equal(indices.read(data, size), members)
    assert np.array_equal(read_set(data.tobytes(), size), members)
    if size > 3000:
        assert data[4] == 62
        assert 8 * data.size <= 0.9 * log2_binomial(size, members.size)


def test_max_nbytes_holds_for_fewer_and_never_exceeds_a_bitmap_by_more_than_the_head():
    for size in (1, 10, 1000, 4099):
        bounds = [indices.max_nbytes(count, size) for count in range(size + 1)]
        assert max(bounds) <= size / 8 + 5 + 3
        assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(bounds))


def test_the_code_of_gaps_is_the_shortest_of_all_its_parameters():
    for density in (0.001, 0.02, 0.11, 0.3, 0.5):
        members = random_set(20000, round(density * 20000))
        distances = np.diff(members.astype(int), prepend=-1) - 1
        lengths = [-(-members.size * b // 8) + -(-int(np.sum((distances >> b) + 1)) // 8) for b in range(20)]
        chosen = gaps.choose(members, 20000)
        assert (chosen.b, chosen.nbytes) == (int(np.argmin(lengths)), min(lengths))
        assert np.array_equal(chosen.bits, np.full(-(-members.size // 32), chosen.b))


@pytest.mark.parametrize(
    ("name", "every", "size"), [("gaps", 30, 3001), ("clusters", 0, 30_011), ("bitmap", 3, 20_011), ("bitmap-others", -3, 20_011)]
)
def test_golden_bytes(name, every, size):
    """Check that sets chosen by a hash of the index, with one density or several in turn, have the stored bytes.
    REWRITE_GOLDEN=1 rewrites them.
    """
    number = np.arange(size, dtype=np.uint64)
    period = every or np.array([3, 50, 1000, 20], np.uint64)[number // np.uint64(500) % np.uint64(4)]
    chosen = (number * np.uint64(2654435761) >> np.uint64(7)) % np.abs(period).astype(np.uint64) == 0
    members = np.flatnonzero(chosen if every >= 0 else ~chosen).astype(np.uint32)
    path = FOLDER / f"indices-{name}.bin"
    data = written(members, size).tobytes()
    if REWRITE:
        path.write_bytes(data)
    assert data == path.read_bytes()
    assert {"gaps": data[4] < 29, "clusters": data[4] == 62}.get(name, data[4] & 63 == 63)
    assert np.array_equal(read_set(data, size), members)


# invalid bytes


GOOD = {
    "gaps": (random_set(1000, 50), 1000),
    "gaps of many": (random_set(5000, 2), 5000),
    "clusters": (clusters(3000, 3), 3000),
    "complement": (random_set(1000, 950), 1000),
    "bitmap": (random_set(4096, 1300), 4096),
    "bitmap of the others": (random_set(4096, 2900), 4096),
    "nothing": (random_set(300, 0), 300),
    "everything": (random_set(300, 300), 300),
}


@pytest.mark.parametrize("name", GOOD)
def test_every_truncation_and_every_added_byte_is_refused(name):
    members, size = GOOD[name]
    data = written(members, size)
    for length in range(data.size):
        with pytest.raises(PayloadError):
            indices.read(data[:length], size)
    for extra in (0, 1, 255):
        with pytest.raises(PayloadError):
            indices.read(np.append(data, np.uint8(extra)), size)


@pytest.mark.parametrize("name", GOOD)
def test_altered_bytes_are_refused_or_some_other_set(name):
    members, size = GOOD[name]
    data = written(members, size)
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(3000):
        altered = data.copy()
        for _ in range(rng.integers(1, 4)):
            altered[rng.integers(altered.size)] = rng.integers(256)
        try:
            found = indices.read(altered, size)
        except PayloadError:
            refused += 1
            continue
        assert found.size == indices.count(altered, size) <= size
        assert found.size == 0 or found[-1] < size
        assert np.all(found[1:] > found[:-1])
    assert refused > 1000


@pytest.mark.parametrize("form", [0, 5, 28, 29, 62, 63, 128, 191])
@pytest.mark.parametrize("count", [0, 1, 2**20, 2**27, 2**28, 2**31, 2**32 - 1])
def test_a_count_that_the_bytes_cannot_hold_allocates_nothing_for_it(count, form):
    data = np.frombuffer(np.uint32(count).tobytes() + bytes([form]) + bytes(range(1, 30)), np.uint8)
    tracemalloc.start()
    with pytest.raises(PayloadError):
        indices.read(data, 2**20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20 * 4


def test_ones_beyond_the_last_coordinate_are_refused():
    members, size = random_set(4000, 1300), 4000
    beyond = np.concatenate([members[:-1], [4001]]).astype(np.uint32)
    data = written(beyond, 4008)
    with pytest.raises(PayloadError):
        indices.read(data, size)
    far = np.array([10, 2000], np.uint32)
    with pytest.raises(PayloadError):
        indices.read(written(far, 4000), 1999)

"""sketchml: its one-sided error, quantiles, sketch theory, the bytes of keys, the paper's coding, and a decoder in NumPy."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, recorded, student
from tests.codecs.golden_reader import header, section, unpack_planes
from tests.codecs.golden_store import check_golden
from tests.codecs.index_oracle import read_set
from tests.codecs.threefry_oracle import stage_words

KEY = Key.derive(6)


class Parts:
    """The fields of a payload, read by the byte table alone."""

    def __init__(self, data: bytes) -> None:
        _, shape, body = header(data)
        self.size = int(np.prod(shape))
        self.negative, self.positive, groups, self.rows = struct.unpack_from("<4H", body)
        bins, start = self.negative + self.positive, 8
        runs = [(min(groups, m), m) for m in (self.negative, self.positive)]
        self.first = [k * m // g for g, m in runs[:1] for k in range(g)] + [
            self.negative + k * m // g for g, m in runs[1:] for k in range(g)
        ]
        if not self.rows:
            self.first = list(range(bins))
        self.columns = np.zeros(0, int)
        if self.rows:
            self.key = struct.unpack_from("<QQ", body, 8)
            self.columns = np.frombuffer(body, "<u4", len(self.first), 24).astype(int)
            start = 24 + 4 * len(self.first)
        self.values = np.frombuffer(body, "<f4", bins, start)
        self.set, packed = section(body[start + 4 * bins :])
        self.places = read_set(self.set, self.size)
        longest = max(np.diff([*self.first, bins]))
        count = self.places.size + self.rows * int(self.columns.sum())
        codes = unpack_planes(packed, count, int(max(len(self.first), longest) - 1).bit_length())
        self.labels, self.cells = codes[: self.places.size].astype(int), codes[self.places.size :].astype(int)

    def decode(self) -> np.ndarray:
        n = self.places.size
        number, table, blocks = np.zeros(n, int), self.cells.reshape(max(self.rows, 1), -1), -(-n // 256)
        for row in range(self.rows):
            drawn = stage_words(self.key, 23 + 256 * row, 64 * blocks).reshape(blocks, 64, 4).transpose(0, 2, 1).reshape(-1)[:n]
            within = (drawn * self.columns[self.labels].astype(np.uint64) >> np.uint64(32)).astype(int)
            number = np.maximum(number, table[row][(np.cumsum(self.columns) - self.columns)[self.labels] + within])
        out = np.zeros(self.size, np.float32)
        out[self.places] = self.values[np.array(self.first)[self.labels] + number]
        return out


def read_sketchml(data: bytes) -> np.ndarray:
    return Parts(data).decode()


def decoded(spec: str, x: np.ndarray) -> np.ndarray:
    codec = get_codec(spec)
    return codec.decode(codec.encode(x, KEY))


def loss(spec: str, x: np.ndarray) -> float:
    return float(np.sum((decoded(spec, x).astype(np.float64) - x) ** 2) / np.sum(x.astype(np.float64) ** 2))


def sparse(size: int, density: float, seed: int = 0) -> np.ndarray:
    """Return Student's t values at random positions."""
    x = student(size, seed=seed)
    x[np.random.default_rng(seed + 1).random(size) >= density] = 0
    return x


@pytest.mark.parametrize(
    "spec", ["sketchml", "sketchml:rows=0", "sketchml:bins=40,groups=3,rows=4,columns=0.7", "sketchml:bins=2"]
)
@pytest.mark.parametrize("x", [student(3001), sparse(9000, 0.05), recorded().reshape(-1), gaussian(500) ** 2], ids=range(4))
def test_a_decoder_in_numpy_reads_the_same(spec: str, x: np.ndarray) -> None:
    codec = get_codec(spec)
    payload = codec.encode(x, KEY)
    np.testing.assert_array_equal(codec.decode(payload), read_sketchml(payload.to_bytes()))


@pytest.mark.parametrize(("name", "spec"), [("sketchml", "sketchml"), ("sketchml-bins", "sketchml:bins=64,rows=0")])
def test_golden_bytes(name: str, spec: str) -> None:
    check_golden(name, spec, read_sketchml)


ARRAYS = arrays(
    np.float32,
    st.integers(1, 600),
    elements=st.one_of(
        st.just(0.0),
        st.floats(-3, 3, width=32, allow_subnormal=False),
        st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
    ),
)


@settings(max_examples=300, deadline=None)
@given(x=ARRAYS, rows=st.integers(1, 4), columns=st.sampled_from([0.05, 0.3, 1.0]), groups=st.sampled_from([1, 2, 8, 128]))
def test_signs_never_flip_and_magnitudes_only_ever_shrink(x: np.ndarray, rows: int, columns: float, groups: int) -> None:
    """Check that a decoded value keeps its sign, and that its magnitude is at most the mean of its bin, to which it decodes
    exactly if there is no sketch (rows=0).
    """
    exact = decoded("sketchml:rows=0", x)
    sketched = decoded(f"sketchml:rows={rows},columns={columns},groups={groups}", x)
    np.testing.assert_array_equal(np.sign(exact), np.sign(x))
    np.testing.assert_array_equal(np.sign(sketched), np.sign(x))
    assert (np.abs(sketched) <= np.abs(exact)).all()


@pytest.mark.parametrize("x", [student(4000), sparse(40_000, 0.1), recorded().reshape(-1)], ids=["student", "sparse", "recorded"])
def test_bins_are_intervals_of_equal_counts_that_decode_to_their_means(x: np.ndarray) -> None:
    got = decoded("sketchml:bins=32,rows=0", x)
    ordered = got[np.argsort(x, kind="stable")]
    assert (np.diff(ordered) >= 0).all()
    members: dict[float, list[int]] = {-1.0: [], 1.0: []}
    for value in np.unique(got[got != 0]):
        part = x[got == value]
        members[float(np.sign(value))].append(part.size)
        assert value == pytest.approx(part.astype(np.float64).mean(), rel=1e-5)
    assert sum(map(len, members.values())) == 32
    assert all(max(counts) - min(counts) <= 1 for counts in members.values())
    assert max(members[1.0]) <= 9 / 7 * min(members[-1.0]) + 1
    assert max(members[-1.0]) <= 9 / 7 * min(members[1.0]) + 1


@pytest.mark.parametrize("bins", [8, 16, 64])
def test_the_error_on_a_gaussian_is_that_of_equally_likely_bins(bins: int) -> None:
    """Check the relative error within 4 %: it is 1 - sum p m^2 over the bins (a, b), where p = 1 / bins and m = bins (phi(a)
    - phi(b)).
    """
    edges = norm.ppf(np.arange(bins + 1) / bins)
    expected = 1 - bins * np.sum(np.diff(norm.pdf(edges)) ** 2)
    assert loss(f"sketchml:bins={bins},rows=0", gaussian(1 << 16)) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize(("rows", "columns"), [(1, 0.3), (2, 0.3), (4, 1.0)])
def test_as_many_bins_survive_the_sketch_as_theory_says(rows: int, columns: float) -> None:
    """Check the share of numbers that are kept exactly, 1 - (1 - q)^rows: a row loses a number that shares its cell with a
    smaller one.

    q = (1 - 1 / c)^(count of smaller numbers of the label), for c cells. There are 40 000 values: the standard error of the
    share is .0025, and the bound 4 of these.
    """
    x = gaussian(40_000)
    spec = f"sketchml:rows={rows},columns={columns}"
    parts = Parts(get_codec(spec).encode(x, KEY).to_bytes())
    exact = decoded("sketchml:rows=0", x)
    rank = {value: index for index, value in enumerate(parts.values.tolist())}
    ranks = np.array([rank[value] for value in exact.tolist()])
    chances = []
    for label, (low, high) in enumerate(zip(parts.first, [*parts.first[1:], parts.values.size], strict=True)):
        counts = np.bincount(ranks[(ranks >= low) & (ranks < high)] - low, minlength=high - low)
        q = (1 - 1 / parts.columns[label]) ** (np.cumsum(counts) - counts)
        chances.append(np.sum(counts * (1 - (1 - q) ** rows)))
    assert np.mean(decoded(spec, x) == exact) == pytest.approx(sum(chances) / x.size, abs=0.01)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.5, 0.99])
def test_keys_take_at_most_3_percent_more_than_their_entropy(density: float) -> None:
    """Compare the size of the coded keys with log2 binomial(d, n), for n of d keys, plus 21 bytes of heads."""
    x = sparse(1 << 18, density)
    parts = Parts(get_codec("sketchml").encode(x, KEY).to_bytes())
    n, d = parts.places.size, x.size
    np.testing.assert_array_equal(parts.places, np.flatnonzero(x))
    least = (math.lgamma(d + 1) - math.lgamma(n + 1) - math.lgamma(d - n + 1)) / math.log(2)
    assert 8 * (len(parts.set) - 21) < 1.03 * least
    assert 8 * len(parts.set) > 0.99 * least


def test_bytes_of_a_dense_array_are_those_of_labels_and_cells() -> None:
    """Check the payload's size for 10 000 values: 16 labels of 16 bins (4 bits per symbol), and .3 columns per value in each
    of 2 rows, where every label's number of columns is rounded down.
    """
    nbytes = get_codec("sketchml").encode(gaussian(10_000), KEY).nbytes
    side = 12 + 8 + 16 + 4 * 16 + 4 * 256 + 4 + 8
    assert side + 4 * (16_000 - 32) / 8 <= nbytes <= side + 4 * 16_000 / 8 + 1


def original_nbytes(parts: Parts) -> int:
    """Return the size of the paper's coding: one byte per cell, two floats per bin, and the gaps between the keys of each
    label. A gap takes as few bytes as possible, and two bits that state their number.
    """
    total = 8 * (parts.positive + parts.negative) + parts.cells.size
    for label in range(len(parts.first)):
        gaps = np.diff(parts.places[parts.labels == label], prepend=0)
        total += int(np.sum(1 + (gaps >= 1 << 8) + (gaps >= 1 << 16) + (gaps >= 1 << 24))) + -(-gaps.size // 4)
    return total


def test_at_one_percent_and_equal_error_the_bytes_are_two_thirds_of_the_originals_at_most() -> None:
    x = sparse(1 << 20, 0.01)
    theirs = get_codec("sketchml")
    payload = theirs.encode(x, KEY)
    parts = Parts(payload.to_bytes())
    assert original_nbytes(parts) > 1.5 * payload.nbytes
    ours = get_codec("sketchml:bins=40,rows=0+ans")
    assert loss(repr(ours), x) < loss(repr(theirs), x)
    assert original_nbytes(parts) > 1.5 * ours.encode(x, KEY).nbytes


def test_behind_a_sparsifier_no_keys_are_sent_twice() -> None:
    x, chain = student(50_000), get_codec("topk:ratio=0.05+sketchml:rows=0")
    payload = chain.encode(x, KEY)
    bare = get_codec("topk:ratio=0.05").encode(x, KEY)
    got = chain.decode(payload)
    assert np.count_nonzero(got) == 2500
    np.testing.assert_array_equal(np.sign(got), np.where(got, np.sign(x), 0))
    assert payload.nbytes < bare.nbytes - 4 * 2500 + 2500 + 4 * 256 + 40


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_zeros_stay_zeros(value: float) -> None:
    x = np.full(1000, value, np.float32)
    assert not decoded("sketchml", x).any()
    assert not decoded("sketchml+ans", x).any()


@pytest.mark.parametrize(
    "given", ["bins=1", "bins=257", "groups=0", "groups=129", "rows=-1", "rows=5", "columns=0", "columns=1.1"]
)
def test_what_cannot_be_configured_is_refused(given: str) -> None:
    with pytest.raises(CodecSpecError, match="sketchml"):
        get_codec(f"sketchml:{given}")


@pytest.mark.parametrize(
    ("at", "value"), [*((at, value) for at in (0, 2, 4, 6) for value in (129, 0xFFFF)), (0, 0), (2, 0), (4, 0)]
)
def test_fields_that_contradict_each_other_are_refused(at: int, value: int) -> None:
    codec = get_codec("sketchml:rows=1")
    data = bytearray(codec.encode(gaussian(500), KEY).to_bytes())
    struct.pack_into("<H", data, 12 + at, value)
    with pytest.raises(PayloadError):
        codec.decode(Payload.from_bytes(bytes(data)))


@pytest.mark.parametrize("columns", [0, 1 << 20])
def test_arrays_without_a_column_or_with_more_than_values_are_refused(columns: int) -> None:
    codec = get_codec("sketchml")
    data = bytearray(codec.encode(gaussian(500), KEY).to_bytes())
    struct.pack_into("<I", data, 12 + 24, columns)
    with pytest.raises(PayloadError, match="columns"):
        codec.decode(Payload.from_bytes(bytes(data)))

"""polar's range coders compared with the oracle's, which decodes one lane at a time in Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs.kernels.jit import kernel
from psnode.codecs.polarcodes.lanes import Llrs, Masks
from psnode.codecs.polarcodes.range_coder import Words16, likely_of
from psnode.codecs.polarcodes.range_reader import WordReader, ended_well, read_row, reader
from psnode.codecs.polarcodes.range_writer import Writer, finish_writing, write_row, writer
from psnode.codecs.polarcodes.rate_channel import chances
from psnode.codecs.polarcodes.vectors import LANES
from tests.codecs.polar_oracle import Coder

ROWS = 300


@kernel
def _write(llrs: Llrs, bits: Masks, table: Words16, writer: Writer, lanes: int) -> None:
    chances = np.empty(LANES, np.uint32)
    state, places, log, words = writer
    used = np.uint64((1 << lanes) - 1)
    for row in range(bits.size):
        likely = likely_of(llrs, row, table, chances)
        write_row(state, places, log, words, chances, np.uint32(bits[row] ^ likely), used)


@kernel
def _read(llrs: Llrs, bits: Masks, table: Words16, reader: WordReader, lanes: int) -> None:
    chances = np.empty(LANES, np.uint32)
    state, place, words = reader
    used = np.uint64((1 << lanes) - 1)
    for row in range(bits.size):
        likely = likely_of(llrs, row, table, chances)
        bits[row] = np.uint32(likely ^ read_row(state, place, words, chances, used))


def packed(bits: np.ndarray) -> Masks:
    """Pack rows of up to 32 bits into one word per row."""
    return np.asarray((bits.astype(np.uint64) << np.arange(bits.shape[1], dtype=np.uint64)).sum(axis=1), np.uint32)


def written(llrs: np.ndarray, bits: np.ndarray) -> Words16:
    """Encode bits of shape (rows, lanes), and return the words that hold them."""
    lanes = bits.shape[1]
    words = np.zeros(2 * bits.size, np.uint16)
    out = writer(words, lanes)
    _write(padded(llrs), packed(bits), chances(), out, lanes)
    return words[: finish_writing(out, lanes)]


def padded(llrs: np.ndarray) -> Llrs:
    """Pad rows to 32 lanes."""
    rows = np.zeros((len(llrs), LANES), np.int16)
    rows[:, : llrs.shape[1]] = llrs
    return rows.reshape(-1)


def read_back(words: Words16, llrs: np.ndarray) -> np.ndarray:
    """Decode the bits with the oracle, and check that all words are used."""
    coder = Coder(words, llrs.shape[1])
    found = np.array([coder.row(row) for row in llrs])
    assert coder.at == words.size
    assert max(coder.code) < 65536
    return found


def some_llrs(lanes: int, largest: int) -> np.ndarray:
    return np.random.default_rng(lanes + largest).integers(-largest, largest, (ROWS, lanes)).astype(np.int64)


@pytest.mark.parametrize("lanes", [1, 5, 32])
@pytest.mark.parametrize("bits", ["likely", "unlikely", "random"])
def test_the_oracle_reads_what_is_written_and_the_reader_too(lanes: int, bits: str) -> None:
    """Check that the oracle and psnode's reader both decode the written bits. Each unlikely bit takes up to 14 bits of the
    stream, so that their words do not fit into the writer's log at once.
    """
    llrs = some_llrs(lanes, 2000)
    likely = llrs < 0
    wanted = {"likely": likely, "unlikely": ~likely, "random": np.random.default_rng(1).random(llrs.shape) < 0.5}[bits]
    words = written(llrs, wanted)
    np.testing.assert_array_equal(read_back(words, llrs), wanted)
    found, source = np.zeros(ROWS, np.uint32), reader(words, lanes)
    _read(padded(llrs), found, chances(), source, lanes)
    np.testing.assert_array_equal(found & np.uint32((1 << lanes) - 1), packed(wanted))
    assert source.place[0] == words.size
    assert ended_well(source.state, lanes)


@pytest.mark.parametrize("lanes", [1, 32])
def test_a_carry_goes_back_through_many_words_of_every_lane(lanes: int) -> None:
    """Check codes just above 1/2: the output is 7FFF FFFF FFFF ... until the interval is known to lie above 1/2, and the
    carry then changes all these words.
    """
    llrs = some_llrs(lanes, 300)
    codes = np.zeros(2 * lanes + ROWS * lanes, np.uint16)
    codes[: 2 * lanes : 2] = 0x8000
    codes[8 * lanes :] = 0xFFFF
    coder = Coder(codes, lanes)
    wanted = np.array([coder.row(row) for row in llrs])
    words = written(llrs, wanted)
    assert words.size > 9 * lanes
    np.testing.assert_array_equal(words[: 6 * lanes], codes[: 6 * lanes])
    np.testing.assert_array_equal(read_back(words, llrs), wanted)

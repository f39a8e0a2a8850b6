"""rice: Golomb-Rice codes of the symbols' ranks by frequency. They are near the entropy if frequencies decay geometrically.

    uint32 number of bits of all codewords; if it is 0, only the packed codes follow, with as many bits as the alphabet needs
    uint32 (number of symbols that occur - 1) + 2^16 k
    the symbols that occur, by falling frequency: 1 byte each, or 2 if the alphabet exceeds 256; zeros to a multiple of 4 bytes
    the codewords in uint32 words, lowest bit first; zeros to the end of the last word

The symbol of rank r is sent as q = r div 2^k ones, a zero, and the k bits of r mod 2^k. If q > 15, it is sent as 16 ones and r in
as many bits as the largest rank needs. k is chosen for the fewest bits.

Source: Golomb, "Run-length encodings", IEEE Trans. IT 1966; Rice, "Some practical universal noiseless coding techniques",
JPL 79-22, 1979.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Int64s, readonly
from psnode.codecs.entropy import rice_kernels as kernels
from psnode.codecs.entropy.ans_model import histogram
from psnode.codecs.entropy.rice_kernels import LONGEST_RUN, NOT_VALID
from psnode.codecs.kernels.packed import bits_for, pack, unpack
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.stages import Lossless, padded
from psnode.errors import PayloadError

_HEAD = 8
_MAX_PARAMETER = 15


@dataclass(frozen=True, repr=False)
class Rice(Lossless):
    """The stage rice, as in `qsgd+rice`: Golomb-Rice codes of the symbols' ranks by frequency."""

    id = "rice"

    def max_nbytes(self, count: int, alphabet: int) -> int:
        """Return the largest length in bytes: that of a length field and packed codes.

        Packed codes are sent if the codewords and their table would take more bytes.
        """
        return 4 + packed_nbytes(count, bits_for(alphabet))

    def compress(self, codes: Codes, alphabet: int, out: Bytes) -> int:
        """Write the coded symbols and return their length in bytes."""
        counts = np.zeros(alphabet, np.int64)
        histogram(readonly(codes), counts)
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        parameter, bits = _best_parameter(counts[order])
        start = _HEAD + padded(order.size * codes.itemsize)
        used = start + 4 * -(-bits // 32)
        if not bits or used > self.max_nbytes(codes.size, alphabet) or bits >= 2**32:
            out[:4] = 0
            return 4 + pack(codes, alphabet, out[4:])
        out[:_HEAD].view(np.uint32)[:] = bits, order.size - 1 + (parameter << 16)
        out[_HEAD:start] = 0
        out[_HEAD : _HEAD + order.size * codes.itemsize].view(codes.dtype)[:] = order
        kernels.encode(readonly(codes), *_codewords(order, alphabet, parameter), out[start:used].view(np.uint32))
        return used

    def expand(self, data: Bytes, codes: Codes, alphabet: int) -> None:
        """Overwrite `codes` with the codes that `data` holds. Raises PayloadError."""
        if data.size < 4:
            raise PayloadError(f"rice: {data.size} bytes end inside a length")
        bits = int(data[:4].view(np.uint32)[0])
        if not bits:
            unpack(data[4:], codes, alphabet, self.id)
            return
        if data.size < _HEAD or data.size % 4:
            raise PayloadError(f"rice: {data.size} bytes end inside a field")
        parameter, ranks = divmod(int(data[4:_HEAD].view(np.uint32)[0]), 1 << 16)
        ranks += 1
        start = _HEAD + padded(ranks * codes.itemsize)
        if parameter > _MAX_PARAMETER or ranks > alphabet or data.size != start + 4 * -(-bits // 32):
            raise PayloadError(f"rice: {bits} bits with k={parameter} of {ranks} symbols do not make {data.size} bytes")
        order = data[_HEAD : _HEAD + ranks * codes.itemsize].view(codes.dtype)
        if int(order.max()) >= alphabet or data[_HEAD + ranks * codes.itemsize : start].any():
            raise PayloadError(f"rice: the table has a symbol that is not below {alphabet}, or is not padded with zeros")
        symbols = order.astype(np.uint16)
        if kernels.decode(data[start:].view(np.uint32), bits, symbols, parameter, bits_for(ranks), codes) == NOT_VALID:
            raise PayloadError(f"rice: {bits} bits are not {codes.size} codewords")


def _lengths(ranks: Int64s, parameter: int, largest_bits: int) -> Int64s:
    """Return the length in bits of the codeword of each of `ranks`."""
    quotients = ranks >> parameter
    return np.where(quotients < LONGEST_RUN, quotients + 1 + parameter, LONGEST_RUN + largest_bits)


def _best_parameter(counts: Int64s) -> tuple[int, int]:
    """Return the best k and the total number of bits with it, for ranks 0, 1, ... that occur `counts` times."""
    ranks = np.arange(counts.size)
    tried = range(min(bits_for(counts.size), _MAX_PARAMETER) + 1)
    totals = [int(counts @ _lengths(ranks, k, bits_for(counts.size))) for k in tried]
    k = int(np.argmin(totals))
    return k, totals[k]


def _codewords(order: Int64s, alphabet: int, parameter: int) -> tuple[Int64s, Int64s]:
    """Return for every code its codeword and the codeword's length in bits."""
    ranks = np.arange(order.size)
    quotients = ranks >> parameter
    short = (1 << np.minimum(quotients, LONGEST_RUN)) - 1 | (ranks & (1 << parameter) - 1) << (quotients + 1) % 32
    words = np.zeros(alphabet, np.int64)
    lengths = np.zeros(alphabet, np.int64)
    words[order] = np.where(quotients < LONGEST_RUN, short, (1 << LONGEST_RUN) - 1 | ranks << LONGEST_RUN)
    lengths[order] = _lengths(ranks, parameter, bits_for(order.size))
    return words, lengths

"""Kernels of ans: eight interleaved rANS states of 32 bits, renormalised by 16 bits.

Symbol i of a section is coded by state i mod 8. The encoder runs from the last symbol to the first and appends words. The
decoder runs from the first symbol to the last and takes words from the end. To encode a symbol of frequency f and cumulative
frequency c, the encoder first moves the low 16 bits of the state x to a word if x >= f 2^18. Then it sets x to (x div f) 2^14 +
c + x mod f. Since x < f 2^18 at this point, the division is exactly a multiplication by ceil(2^46 / f) and a shift.

Source: Duda, "Asymmetric numeral systems", arXiv:1311.2540; Giesen, "Interleaved entropy coders", arXiv:1402.3392.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Codes, Int64s, Words, Words16
from psnode.codecs.entropy.ans_model import PRECISION, TOTAL
from psnode.codecs.kernels.jit import inlined, kernel

LANES = 8
LOWEST = 1 << 16  # the initial value of every state; states are in 2^16 .. 2^32 - 1
FULL = -1
PAIR_PAD = 8  # the pair (a, b), a uint16 a + 256 b, has index a + (256 + 8) b, as rows of 2^n entries would share cache sets


@kernel
def encoding_rows(freqs: Int64s, rows: Words) -> None:
    """Write two uint64 words to `rows` for each symbol of frequency f: the reciprocal ceil(2^46 / f), and packed parameters.

    The packed parameters are, from the high bits down: the limit f 2^18 (32 bits), the cumulative frequency (16 bits) and
    2^14 - f (16 bits).
    """
    start = 0
    for k in range(freqs.size):
        f = freqs[k]
        rows[2 * k] = np.uint64(((np.int64(1) << (32 + PRECISION)) + f - 1) // f)
        rows[2 * k + 1] = np.uint64((f << (64 - PRECISION)) | (start << 16) | (TOTAL - f))
        start += f


@kernel
def code_table(rows: Words, lut: Int64s, table: Words) -> None:
    """Copy the two words of row lut[code] to entry `code` of `table`, for every code."""
    for s in range(lut.size):
        table[2 * s] = rows[2 * lut[s]]
        table[2 * s + 1] = rows[2 * lut[s] + 1]


@kernel
def pair_table(rows: Words, lut: Int64s, m: int, table: Words) -> None:
    """Copy the two words of row m lut[a] + lut[b] to entry a + 264 b of `table`, for every pair (a, b) of codes."""
    for b in range(lut.size):
        for a in range(lut.size):
            at = 2 * (a + (256 + PAIR_PAD) * b)
            row = 2 * (m * lut[a] + lut[b])
            table[at] = rows[row]
            table[at + 1] = rows[row + 1]


@inlined
def _put(x: np.uint64, symbol: int, pad: np.uint64, table: Words, words: Words16, p: np.uint64) -> tuple[np.uint64, np.uint64]:
    s = np.uint64(symbol)
    index = (s + pad * (s >> np.uint64(8))) << np.uint64(1)
    reciprocal = table[index]
    row = table[index | np.uint64(1)]
    words[p] = np.uint16(x)
    full = np.uint64(x >= (row >> np.uint64(32)))
    x >>= full << np.uint64(4)
    quotient = (x * reciprocal) >> np.uint64(32 + PRECISION)
    x += quotient * (row & np.uint64(0xFFFF)) + ((row >> np.uint64(16)) & np.uint64(0xFFFF))
    return x, p + full


@kernel
def encode(symbols: Codes, pad: int, table: Words, words: Words16, used: int, states: Words) -> int:
    """Append the words of one section to words[:used], and return the new length, or FULL if `words` is too short.

    `pad` is 0 for single codes and PAIR_PAD for pairs.
    """
    limit = words.size - LANES
    if used > limit:
        return FULL
    p = np.uint64(used)  # all indices are unsigned, because Numba tests signed indices for negative values
    wide = np.uint64(pad)
    last = symbols.size // LANES * LANES
    for i in range(symbols.size - 1, last - 1, -1):
        states[i - last], p = _put(states[i - last], symbols[i], wide, table, words, p)
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    x4, x5, x6, x7 = states[4], states[5], states[6], states[7]
    for _ in range(last // LANES):
        if p > np.uint64(limit):
            return FULL
        last -= LANES
        j = np.uint64(last)
        x7, p = _put(x7, symbols[j | np.uint64(7)], wide, table, words, p)
        x6, p = _put(x6, symbols[j | np.uint64(6)], wide, table, words, p)
        x5, p = _put(x5, symbols[j | np.uint64(5)], wide, table, words, p)
        x4, p = _put(x4, symbols[j | np.uint64(4)], wide, table, words, p)
        x3, p = _put(x3, symbols[j | np.uint64(3)], wide, table, words, p)
        x2, p = _put(x2, symbols[j | np.uint64(2)], wide, table, words, p)
        x1, p = _put(x1, symbols[j | np.uint64(1)], wide, table, words, p)
        x0, p = _put(x0, symbols[j], wide, table, words, p)
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    states[4], states[5], states[6], states[7] = x4, x5, x6, x7
    return int(np.int64(p))


@kernel
def decoding_slots(freqs: Int64s, symbols: Words16, slots: Words16, rows: Words) -> None:
    """Fill the decoder's tables: `slots` maps each of 2^14 slots to the index k of its symbol, and rows[k] describes this symbol.

    rows[k] holds, from the high bits down, the frequency (32 bits), the cumulative frequency (16) and the symbol (16).
    """
    start = 0
    for k in range(freqs.size):
        slots[start : start + freqs[k]] = k
        rows[k] = np.uint64((freqs[k] << 32) | (start << 16) | np.int64(symbols[k]))
        start += freqs[k]


@inlined
def _step(x: np.uint64, slots: Words16, rows: Words) -> tuple[np.uint64, np.uint64]:
    slot = x & np.uint64(TOTAL - 1)
    row = rows[slots[slot]]
    x = (x >> np.uint64(PRECISION)) * (row >> np.uint64(32)) + slot - ((row >> np.uint64(16)) & np.uint64(0xFFFF))
    return row, x


@inlined
def _get(x: np.uint64, slots: Words16, rows: Words, words: Words16, p: np.uint64) -> tuple[np.uint16, np.uint64, np.uint64]:
    row, x = _step(x, slots, rows)
    word = np.uint64(words[p - np.uint64(1)])
    empty = x < np.uint64(LOWEST)
    x = ((x << np.uint64(16)) | word) if empty else x
    return np.uint16(row & np.uint64(0xFFFF)), x, p - np.uint64(empty)


@kernel
def _get_last(out: Codes, slots: Words16, rows: Words, words: Words16, used: int, states: Words) -> int:
    """Decode at most 8 symbols, checking that there are enough words.

    Return the number of words left, or FULL if words were missing.
    """
    for lane in range(out.size):
        row, x = _step(states[lane], slots, rows)
        if x < np.uint64(LOWEST):
            if used == 0:
                return FULL
            used -= 1
            x = (x << np.uint64(16)) | np.uint64(words[used])
        states[lane] = x
        out[lane] = np.uint16(row & np.uint64(0xFFFF))
    return used


@kernel
def decode(out: Codes, slots: Words16, rows: Words, words: Words16, used: int, states: Words) -> int:
    """Overwrite `out` with the symbols of one section, whose words are taken from the end of words[:used].

    Returns the number of words left, or FULL if there are too few words.
    """
    last = out.size // LANES * LANES
    at = 0
    while at < last:
        i = np.uint64(at)
        p = np.uint64(used)
        x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
        x4, x5, x6, x7 = states[4], states[5], states[6], states[7]
        while i < np.uint64(last) and p >= np.uint64(LANES):
            out[i], x0, p = _get(x0, slots, rows, words, p)
            out[i | np.uint64(1)], x1, p = _get(x1, slots, rows, words, p)
            out[i | np.uint64(2)], x2, p = _get(x2, slots, rows, words, p)
            out[i | np.uint64(3)], x3, p = _get(x3, slots, rows, words, p)
            out[i | np.uint64(4)], x4, p = _get(x4, slots, rows, words, p)
            out[i | np.uint64(5)], x5, p = _get(x5, slots, rows, words, p)
            out[i | np.uint64(6)], x6, p = _get(x6, slots, rows, words, p)
            out[i | np.uint64(7)], x7, p = _get(x7, slots, rows, words, p)
            i += np.uint64(LANES)
        states[0], states[1], states[2], states[3] = x0, x1, x2, x3
        states[4], states[5], states[6], states[7] = x4, x5, x6, x7
        at = int(np.int64(i))
        used = int(np.int64(p))
        if at < last:
            used = _get_last(out[at : at + LANES], slots, rows, words, used, states)
            if used < 0:
                return FULL
            at += LANES
    return _get_last(out[last:], slots, rows, words, used, states)

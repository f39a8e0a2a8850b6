"""ans: entropy coding of symbols by interleaved coders of the range variant of asymmetric numeral systems (rANS).

    uint32 length of the tables in bytes; if it is 0, only the packed codes follow, with as many bits as the alphabet needs
    the tables: sections (see psnode.codecs.entropy.ans_sections), then the escaped codes, one byte each, or two if the alphabet
    exceeds 256; zeros to a multiple of 4 bytes
    8 uint32 states
    uint16 words, read from the last to the first

Codes are divided into sections where their statistics change. Codes of small alphabets are coded in pairs, which takes half the
steps. A code that is too rare for a table entry is coded as the escape symbol, and appended to the list of escaped codes. If
the result would be longer than the packed codes, the packed codes are sent instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Bytes, Codes, Words, Words16, readonly
from psnode.codecs.entropy import ans_kernels as kernels
from psnode.codecs.entropy.ans_kernels import LANES, LOWEST, PAIR_PAD
from psnode.codecs.entropy.ans_model import TOTAL
from psnode.codecs.entropy.ans_sections import Section, choose_sections, read_sections
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.packed import bits_for, pack, unpack
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.stages import Lossless, codes_like, padded, read_section, write_section
from psnode.errors import PayloadError

_STATES = 4 * LANES
_SCAN = 256  # codes that are searched for rare codes together


@dataclass(frozen=True, repr=False)
class Ans(Lossless):
    """The stage ans, as in `qsgd+ans`.

    Its output is within about 1 % of the symbols' entropy, if they are independent in each section.
    """

    id = "ans"

    def max_nbytes(self, count: int, alphabet: int) -> int:
        """Return the largest length in bytes: that of a length field and packed codes.

        Packed codes are sent if the tables and words of ans would take more bytes.
        """
        return 4 + packed_nbytes(count, bits_for(alphabet))

    def compress(self, codes: Codes, alphabet: int, out: Bytes) -> int:
        """Write the coded symbols and return their length in bytes."""
        out = out[: self.max_nbytes(codes.size, alphabet)]
        used = _compress(readonly(codes), alphabet, out)
        if used:
            return used
        out[:4] = 0
        return 4 + pack(codes, alphabet, out[4:])

    def expand(self, data: Bytes, codes: Codes, alphabet: int) -> None:
        """Overwrite `codes` with the codes that `data` holds. Raises PayloadError."""
        tables, coded = read_section(data)
        if not tables.size:
            unpack(coded, codes, alphabet, self.id)
            return
        sections, rest = read_sections(tables, codes.size, alphabet)
        if coded.size < _STATES or coded.size % 2:
            raise PayloadError(f"ans: {coded.size} bytes cannot be states and words")
        states = coded[:_STATES].view(np.uint32).astype(np.uint64)
        words = coded[_STATES:].view(np.uint16)
        p = words.size
        start = 0
        for section in sections:
            part = codes[start : start + section.size]
            p = _decode_section(section, part, alphabet, words, p, states)
            if p < 0:
                raise PayloadError("ans: the words end before the codes")
            if section.escape:
                rest = _fill_in(part, _stand_in(section), rest, alphabet)
            start += section.size
        if p or np.any(states != LOWEST) or rest.size:
            raise PayloadError(f"ans: {p} words and {rest.size} bytes of escaped codes are left, or a state is wrong")


def _compress(codes: Codes, alphabet: int, out: Bytes) -> int:
    """Write the tables, states and words to `out`. Return the number of bytes, or 0 if they do not fit."""
    sections = choose_sections(codes, alphabet)
    head = b"".join(section.to_bytes() for section in sections)
    escaped = _escaped(codes, sections, alphabet)
    start = 4 + padded(len(head) + len(escaped))
    if start + _STATES > out.size:
        return 0
    out[4 : 4 + len(head) + len(escaped)] = np.frombuffer(head + escaped, np.uint8)
    write_section(out, len(head) + len(escaped))
    words = out[start + _STATES : start + (out.size - start) // 2 * 2].view(np.uint16)
    states = np.full(LANES, LOWEST, np.uint64)
    p = 0
    end = codes.size
    for section in reversed(sections):
        p = _encode_section(section, codes[end - section.size : end], alphabet, words, p, states)
        if p < 0:
            return 0
        end -= section.size
    out[start : start + _STATES].view(np.uint32)[:] = states
    return start + _STATES + 2 * p


def _encode_section(section: Section, codes: Codes, alphabet: int, words: Words16, p: int, states: Words) -> int:
    if section.is_constant:
        return p
    lut = section.lut(alphabet)
    freqs = section.pair_freqs() if section.pairs else section.freqs
    rows = np.empty(2 * freqs.size, np.uint64)
    kernels.encoding_rows(freqs, rows)
    if not section.pairs:
        table = np.empty(2 * alphabet, np.uint64)
        kernels.code_table(rows, lut, table)
        return kernels.encode(codes, 0, table, words, p, states)
    table = np.empty(2 * (256 + PAIR_PAD) * alphabet, np.uint64)
    kernels.pair_table(rows, lut, section.freqs.size, table)
    return kernels.encode(codes.view(np.uint16), PAIR_PAD, table, words, p, states)


def _decode_section(section: Section, codes: Codes, alphabet: int, words: Words16, p: int, states: Words) -> int:
    symbols = section.symbols.astype(np.uint16)
    if section.escape:
        symbols = np.insert(symbols, 0, _stand_in(section))
    freqs = section.freqs
    out: Codes = codes
    if section.is_constant:
        codes[:] = symbols[0]
        return p
    if section.pairs:
        freqs = section.pair_freqs()
        symbols = (symbols[:, None] + 256 * symbols).reshape(-1)
        out = codes.view(np.uint16)
    slots, rows = np.empty(TOTAL, np.uint16), np.empty(freqs.size, np.uint64)
    kernels.decoding_slots(freqs, symbols, slots, rows)
    return kernels.decode(out, slots, rows, words, p, states)


def _stand_in(section: Section) -> int:
    """Return the lowest code without a table entry.

    The escape symbol first decodes to this code. Then the escaped codes replace it.
    """
    gaps = np.flatnonzero(section.symbols != np.arange(section.symbols.size))
    return int(gaps[0]) if gaps.size else section.symbols.size


def _escaped(codes: Codes, sections: list[Section], alphabet: int) -> bytes:
    """Return, for all sections, the codes without a table entry, in their order, as bytes."""
    found = b""
    start = 0
    for section in sections:
        if section.escape:
            part = codes[start : start + section.size]
            rare = np.ones(alphabet, np.bool_)
            rare[section.symbols] = False
            values = codes_like(section.max_escaped(alphabet), alphabet)
            low, width = _common_range(section)
            found += values[: _take_rare(part, rare, low, width, values)].tobytes()
        start += section.size
    return found


def _common_range(section: Section) -> tuple[int, int]:
    """Return the run of successive explicit symbols with the largest total frequency: its first symbol, and its length less 1."""
    runs = np.split(np.arange(section.symbols.size), np.flatnonzero(np.diff(section.symbols) > 1) + 1)
    run = max(runs, key=lambda run: int(section.freqs[run + section.escape].sum()))
    return (int(section.symbols[run[0]]), run.size - 1) if run.size else (0, -1)


@kernel
def _take_rare(codes: Codes, rare: npt.NDArray[np.bool_], low: int, width: int, found: Codes) -> int:
    """Write the codes for which `rare` is True to `found`, and return their number.

    The codes low .. low + width must not be rare.
    """
    count = 0
    first = codes.dtype.type(low)
    for start in range(0, codes.size, _SCAN):
        block = codes[start : start + _SCAN]
        top = codes.dtype.type(0)
        for i in range(block.size):
            top = max(top, codes.dtype.type(block[i] - first))  # codes below `low` wrap around
        if top > width:
            for code in block:
                if rare[code]:
                    found[count] = code
                    count += 1
    return count


def _fill_in(codes: Codes, stand_in: int, data: Bytes, alphabet: int) -> Bytes:
    """Replace every `stand_in` in `codes` by the next escaped code in `data`, and return the remaining data.

    Raises PayloadError.
    """
    width = codes.itemsize
    at = np.flatnonzero(codes == stand_in)
    if width * at.size > data.size:
        raise PayloadError(f"ans: {at.size} escaped codes in {data.size} bytes")
    values = data[: width * at.size].copy().view(codes.dtype)
    if int(values.max(initial=0)) >= alphabet:
        raise PayloadError(f"ans: an escaped code is not below {alphabet}")
    codes[at] = values
    return data[width * at.size :]

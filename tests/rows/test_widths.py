"""Planes whose width is a number in the payload: their size follows this number, from no planes to the maximum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.rows import Fields, Value, bits, f32, floor, i32, largest, largest_of_all, maximum, planes, u32, where
from psnode.codecs.rows.coder import Coder, Functions
from psnode.codecs.rows.formula import Program, program_of
from psnode.codecs.rows.interpreter import Interpreted
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian
from tests.codecs.golden_reader import unpack_planes
from tests.rows.test_language import by_cuda_text, by_numba, with_gxx

KEY = np.zeros(2, np.uint64)
MAKERS = [Interpreted, by_numba, pytest.param(by_cuda_text, marks=with_gxx)]


class Whole:
    """A formula that sends magnitudes without fractions, with the bits of the largest one, and a number per row."""

    id, number, may_overflow = "whole", 250, False

    def __init__(self, most: int) -> None:
        self.most = most

    def to_fields(self, v: Value) -> Fields:
        end = u32(i32(floor(largest_of_all(v))))
        width = where(end == 0, u32(0), (bits(f32(i32(end))) >> 23) - 126)
        codes = u32(i32(floor(abs(v))))
        return Fields(end=end, tops=largest(v), codes=planes(codes, width, self.most))

    def from_fields(self, end: Value, tops: Value, codes: Value) -> Value:
        return where(end == 0, 0.0, f32(i32(codes))) + tops * 0


@pytest.mark.sweep
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("most", [7, 11])
def test_a_body_is_as_long_as_the_widest_code_asks_for(make: Callable[[Program], Functions], most: int) -> None:
    program = program_of(Whole(most))
    coder = Coder(program, make(program))
    for width in range(most + 1):
        for size in (1, 511, 512, 5 * 512 + 7):
            x = np.clip(gaussian(size) * np.float32(2.0 ** (width - 3)), 0.25 - 2.0**width, 2.0**width - 0.25).astype(np.float32)
            x[size // 2] = 0.5 - 2.0**width if width else 0.5
            whole = np.floor(np.abs(x))
            body, error = np.empty(program.nbytes(size), np.uint8), np.empty(size, np.float32)
            assert coder.encode(x, KEY, body, error) == size
            side = 4 + 4 * -(-size // 512)
            assert program.length(body, size) == side + (packed_nbytes(size, width) if width else 0)
            assert program.nbytes(size) == side + packed_nbytes(size, most)
            body = body[: program.length(body, size)]
            found = unpack_planes(body[side:].tobytes(), size, width) if width else np.zeros(size)
            np.testing.assert_array_equal(found, whole)
            np.testing.assert_array_equal(error, x - whole)
            coder.check(body, size)
            sums = np.ones(size, np.float32)
            coder.decode(body, sums, np.float32(0.5), True)
            np.testing.assert_array_equal(sums, 1 + whole.astype(np.float32) / 2)


def test_a_body_of_another_length_than_its_numbers_say_is_refused() -> None:
    program = program_of(Whole(7))
    coder, x = Coder(program, Interpreted(program)), np.full(700, 5, np.float32)
    room = np.empty(program.nbytes(700), np.uint8)
    coder.encode(x, KEY, room, np.empty(0, np.float32))
    body = room[: program.length(room, 700)].copy()
    coder.check(body, 700)
    for wrong in (body[:-1], np.append(body, np.uint8(0)), body[:12], body[:11], body[:3]):
        with pytest.raises(PayloadError, match="whole"):
            coder.check(wrong, 700)
    for end in (0, 1, 8, 127, 2**32 - 1):
        body[:4].view(np.uint32)[0] = end
        with pytest.raises(PayloadError, match="whole"):
            coder.check(body, 700)
    assert program.length(body, 700) == program.nbytes(700), "more bits than the most count as the most"


def test_a_width_is_made_of_numbers_that_are_sent() -> None:
    def refused(width: Callable[[Value, Value], Value], most: int = 9) -> str:
        class Bad(Whole):
            def to_fields(self, v: Value) -> Fields:
                end = u32(i32(largest_of_all(v)))
                return Fields(end=end, tops=largest(v), codes=planes(bits(v) & 1, width(v, end), most))

        with pytest.raises(CodecSpecError) as caught:
            program_of(Bad(9))
        return str(caught.value)

    assert "numbers that are sent" in refused(lambda v, end: u32(i32(largest_of_all(v) + 1)))
    assert "uint32 of the array" in refused(lambda v, end: u32(i32(largest(v))))
    assert "uint32 of the array" in refused(lambda v, end: bits(v))
    assert "uint32 of the array" in refused(lambda v, end: f32(i32(end)))
    assert "1 to 16 bits" in refused(lambda v, end: maximum(end, 1), 17)

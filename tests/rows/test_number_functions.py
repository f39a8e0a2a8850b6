"""Functions of instructions in a generated module: their arguments and results; equal functions are written once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.kernels.llvm.instructions import plain
from psnode.codecs.rows import f32, floor, i32, sqrt, u32, where
from psnode.codecs.rows.compiled import compiled
from psnode.codecs.rows.numba.number_functions import NumberFunctions
from psnode.codecs.rows.numba.text import text_of
from psnode.codecs.rows.values import Dtype, Value, constant
from tests.rows.forms import FORMS, program

HEADER = """
import numpy as np
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import choose, round_down, square_root
"""


def given(name: str, kind: Dtype = Dtype.F32) -> Value:
    return Value("given", kind, detail=name)


def name_of(value: Value) -> str | None:
    return str(value.detail) if value.op == "given" else None


def test_a_function_takes_what_is_known_and_computes_the_rest() -> None:
    a, b = given("a"), given("b", Dtype.U32)
    functions = NumberFunctions()
    ends = [where(floor(a * 2.5) < 10, sqrt(abs(a)), -a), (b << 3) ^ u32(i32(a))]
    assert functions.call(ends, name_of) == "f1(a, b)"
    made: Any = compiled("\n".join([HEADER, *functions.lines()]))
    for x, word in ((np.float32(3.75), np.uint32(7)), (np.float32(4.5), np.uint32(2**31 + 5)), (np.float32(-3.5), np.uint32(1))):
        found = plain(made.f1)(x, word)
        root = np.sqrt(np.abs(x)) if np.floor(np.float32(x * 2.5)) < 10 else -x
        assert found == (root, (int(word) * 8) % 2**32 ^ int(x) % 2**32)


def test_a_value_that_is_named_before_is_passed_and_not_computed_again() -> None:
    a = given("a")
    doubled, functions = a + a, NumberFunctions()
    names = {doubled: "n7"}
    assert functions.call([sqrt(doubled * 3)], lambda value: names.get(value) or name_of(value)) == "f1(n7)"
    assert not any("+" in line for line in functions.lines())


def test_constants_are_inside() -> None:
    functions = NumberFunctions()
    assert functions.call([constant(0.5, Dtype.F32) * f32(2)], name_of) == "f1()"
    assert "np.float32(0.5) * np.float32(2.0)" in "\n".join(functions.lines())


@pytest.mark.parametrize("spec", FORMS)
def test_equal_functions_are_written_once(spec: str) -> None:
    text = text_of(program(get_codec(spec)))
    bodies = [part.split("@kernel")[0] for part in re.split(r"@instructions\ndef f\d+", text)[1:]]
    assert len(set(bodies)) == len(bodies)
    assert all(re.search(rf"\bf{number + 1}\(", text.split("@kernel", 1)[1]) for number in range(len(bodies)))


def test_coordinates_that_share_random_bits_call_one_function() -> None:
    """Check that the loop of dithered calls one function for the four coordinates that share random bits."""
    loops = text_of(program(get_codec("dithered"))).split("for i in range(128):")[1:]
    called = [re.findall(r"= (f\d+)\(v\[", loop) for loop in loops]
    assert called[0][:4] == called[0][:1] * 4

"""All code that is generated from a formula writes the codec's bytes, leaves the codec's error and decodes to the codec's
values.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from psnode.codecs import get_codec
from psnode.codecs.rows import interpreter
from psnode.codecs.rows.coder import Coder, Functions
from psnode.codecs.rows.compiled import compiled
from psnode.codecs.rows.interpreter import Interpreted
from psnode.codecs.rows.numba.text import text_of
from psnode.codecs.table import number_of
from tests.rows.forms import EMPTY, FORMS, GOLDEN, KEY, all_ties, check, check_all, check_golden, program, with_formula

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def interpreted(spec: str) -> Functions:
    return Interpreted(program(get_codec(spec)))


def by_numba(spec: str) -> Functions:
    return compiled(text_of(program(get_codec(spec))))


def test_every_codec_with_a_formula_is_tested_here_and_has_golden_bytes() -> None:
    assert with_formula() == {get_codec(spec).id for spec in FORMS} == {get_codec(spec).id for spec in GOLDEN.values()}


@pytest.mark.parametrize("make", [interpreted, by_numba])
@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_payload(name: str, make) -> None:
    check_golden(name, make(GOLDEN[name]))


@pytest.mark.sweep
@pytest.mark.parametrize("make", [interpreted, by_numba])
@pytest.mark.parametrize("spec", FORMS)
def test_all_contract_inputs(spec: str, make) -> None:
    check_all(spec, make(spec))


def test_settled_values_that_no_code_needs_may_be_undefined() -> None:
    """Check that rows of zeros are coded correctly, although they have no scale and their quotients are not numbers. Of 2^17
    coordinates, two on average have random bits that leave the decision to the fraction of such a quotient.
    """
    check(get_codec("dithered"), interpreted("dithered"), np.zeros(2**17, np.float32))


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("qsgd:levels=1,norm=max", "all ties"),
        ("terngrad", "all ties"),
        ("minmax:bits=1", "all ties"),
        ("nuqsgd:levels=62,norm=max", "all ties of powers"),
        ("natural", "all ties of powers"),
    ],
)
def test_all_ties_are_ties(spec: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that these inputs reach the code that settles ties."""
    asked, chance = [], interpreter._chance
    monkeypatch.setattr(interpreter, "_chance", lambda *arguments: asked.append(arguments) or chance(*arguments))
    x = dict(all_ties(number_of(get_codec(spec).id)))[name]
    check(get_codec(spec), interpreted(spec), x)
    assert len(asked) > 3 * 0.99 * x.size  # a check encodes three times


@pytest.mark.sweep
@pytest.mark.parametrize("spec", FORMS)
@given(x=arrays.arrays(np.float32, st.integers(1, 1100), elements=FINITE, fill=FINITE))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_finite_input(spec: str, x: np.ndarray) -> None:
    check(get_codec(spec), by_numba(spec), x)


@pytest.mark.sweep
@pytest.mark.parametrize("make", [interpreted, by_numba])
@pytest.mark.parametrize("spec", FORMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_ends_the_sweep_before_its_row(spec: str, make, value: float) -> None:
    coder = Coder(program(get_codec(spec)), make(spec))
    for index in (0, 600, 1030):
        x = np.ones(1100, np.float32)
        x[index] = value
        done = coder.encode(x, np.array(KEY.words, np.uint64), np.empty(coder.program.nbytes(1100), np.uint8), EMPTY)
        assert done in (0, index // 512 * 512)


@pytest.mark.parametrize("make", [interpreted, by_numba])
@pytest.mark.parametrize("scale", [0.0, 2.0**-149, 1.5, 3.4e38])
def test_the_three_digits_of_terngrad_have_the_signs_of_their_products(make, scale: float) -> None:
    """Check the signs of decoded values, -0 included. Bytes 0, 121 and 242 are five times the digit 0, 1 or 2."""
    body = np.repeat(np.array([0, 121, 242], np.uint8), 512)
    body = np.concatenate([np.array([scale], np.float32).view(np.uint8), body])
    out = np.empty(3 * 2560, np.float32)
    Coder(program(get_codec("terngrad")), make("terngrad")).decode(body, out, np.float32(1), False)
    expected = np.repeat(np.float32([-1, 0, 1]), 2560) * np.float32(scale)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
